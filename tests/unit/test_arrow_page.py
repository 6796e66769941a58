"""docs/arrow-bolts.md is a test module that passes."""

import os
import re
import subprocess
import sys
from pathlib import Path

from spark_jobs import ArrowCollector

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "arrow-bolts.md").read_text()


def test_the_tests_on_the_page_pass(tmp_path):
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    module = tmp_path / "test_page.py"
    module.write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", f"--rootdir={tmp_path}", str(module)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_every_call_of_the_collector_is_on_the_page():
    calls = [name for name, value in vars(ArrowCollector).items() if not name.startswith("_") and callable(value)]
    assert {"emit", "emit_direct", "fail"} <= set(calls)
    assert [name for name in calls if f"`{name}" not in PAGE] == []
