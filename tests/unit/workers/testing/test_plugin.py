"""The pytest plugin, which every pytest loads where tiercel is installed."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

from tiercel.workers.testing import plugin
from tiercel.workers.testing.cluster import EngineName


def test_a_pytest_that_starts_no_cluster_loads_no_kit(tmp_path):
    (tmp_path / "test_else.py").write_text(
        "import sys\n\n\ndef test():\n"
        "    heavy = {'numpy', 'pyarrow', 'redis', 'pika', 'tiercel.workers.testing.cluster'}\n"
        "    assert not heavy & set(sys.modules)\n"
        "    assert 'tiercel.workers.testing.plugin' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_option_offers_the_engines_of_the_kit():
    assert get_args(EngineName) == plugin.ENGINES
