"""The demo on a smaller text: its last line is true."""

import json
import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(900)

KEYS = [
    "published", "acked", "requeued", "dead_lettered", "lost", "undercounted", "sentences_per_s",
    "p50_ms", "p99_ms",
]  # fmt: skip


def demo(folder, *options):
    """Return all output of the demo, and the JSON object of the last line.

    Its note lies in ``folder``, which has no other demo.
    """
    command = [sys.executable, "-m", "tiercel", "demo", *options]
    finished = subprocess.run(
        command,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout, json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.quick
def test_with_faults_nothing_is_lost_and_only_poison_is_dead(tmp_path):
    printed, result = demo(tmp_path, "--repeat", "1")
    assert list(result) == KEYS
    assert (result["lost"], result["undercounted"], result["dead_lettered"]) == (0, 0, 3)
    assert result["acked"] == result["published"] - 3
    assert result["requeued"] > 3 * 5
    assert "SIGKILL" in printed


@pytest.mark.slow
def test_without_faults_the_counts_are_exactly_those_of_the_text(tmp_path):
    text = tmp_path / "text"
    text.write_text(
        "\n".join(f"line {n % 7} of the text, ünïcode and a number {n}" for n in range(3_000))
    )
    printed, result = demo(tmp_path, "--calm", "--text", str(text), "--repeat", "2")
    assert (result["published"], result["acked"], result["dead_lettered"]) == (6_000, 6_000, 0)
    assert (result["lost"], result["undercounted"]) == (0, 0)
    assert re.search(r"counted too often\W+0\W", printed), printed
