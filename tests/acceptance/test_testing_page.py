"""docs/testing.md is a test module that passes, with Spark in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from spark_jobs import testing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_tests_on_the_page_pass(tmp_path):
    code = "\n\n".join(blocks())
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
    written = len(re.findall(r"^def test_", code, re.MULTILINE))
    assert written >= 4
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{written} passed" in done.stdout


def test_every_name_of_the_kit_is_on_the_page():
    assert [name for name in testing.__all__ if name not in PAGE] == []
