"""The Storm side of the benchmark: its steps without Maven, and which of its runs count."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import parts
from bench.probe import ProbeResults
from bench.rig import BenchError
from bench.storm import build, cluster
from bench.storm.build import StormMissingError, failure
from bench.storm.cluster import StormRunning

UNREACHED = """[ERROR] Failed to execute goal on project storm: Could not collect dependencies
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
"""
BROKEN = """[ERROR] COMPILATION ERROR :
[ERROR] /bench/storm/java/Main.java:[3,1] class expected
"""


@pytest.mark.parametrize("missing", ["java", "javac", "mvn"])
def test_without_its_programs_the_part_is_left_out_with_one_line(missing, monkeypatch):
    monkeypatch.setattr(
        build.shutil, "which", lambda name: None if name == missing else f"/usr/bin/{name}"
    )
    said = []
    assert parts.measure_storm(parts.QUICK, None, said.append) == {}
    [line] = said
    assert line.startswith("Storm is left out: ")
    assert line.endswith(f"there is no {missing} on the PATH")


def test_jars_that_cannot_be_fetched_leave_storm_out():
    found = failure(UNREACHED)
    assert isinstance(found, StormMissingError)
    assert "Could not collect dependencies" in str(found)
    assert isinstance(failure("killed"), StormMissingError)


def test_code_of_ours_that_does_not_compile_is_an_error():
    found = failure(BROKEN)
    assert isinstance(found, BenchError)
    assert str(found) == (
        "bench/storm/java does not compile: /bench/storm/java/Main.java:[3,1] class expected"
    )


def test_the_same_sources_are_built_once(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "BUILT", tmp_path / "storm")
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/usr/bin/{name}")
    runs = []

    def run(command, **_options):
        runs.append(command)
        (tmp_path / "storm").mkdir()
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(build.subprocess, "run", run)
    assert build.classpath() == build.classpath()
    assert len(runs) == 1
    assert str(build.FOLDER / "pom.xml") in runs[0]
    monkeypatch.setattr(build, "_digest", lambda: "of other sources")
    build.classpath()
    assert len(runs) == 2


def test_no_host_is_named_where_the_jars_come_from():
    files = [build.FOLDER / "pom.xml", *build.FOLDER.glob("java/*.java"), Path(build.__file__)]
    assert not [path for path in files if "://" in path.read_text()]


def progress(folder: Path, delivered, acked, returned):
    (folder / "progress-1").write_text(f"1.0 {delivered} {acked} {returned}\n")


@pytest.fixture
def topology(tmp_path, monkeypatch):
    made = StormRunning("java", SimpleNamespace(), ProbeResults(tmp_path), lambda: False)

    def fill(_settings, _queue, bodies):
        assert list(bodies) == [b""], "a report is asked for"
        now = made.reading.last()
        progress(tmp_path, now.delivered + 1, now.acked + 1, 0)

    monkeypatch.setattr(cluster, "fill", fill)
    return made


def test_words_count_if_each_of_the_acked_sentences_is_in_the_counts(topology, tmp_path):
    progress(tmp_path, 7, 7, 0)
    (tmp_path / "counted-3").write_text("40")
    (tmp_path / "counted-4").write_text("30")
    topology.check_words()
    # The report was acked too, and has no words.
    topology.check_words()
    (tmp_path / "counted-4").write_text("31")
    with pytest.raises(BenchError, match="Storm counted 71 words instead of 70"):
        topology.check_words()


def test_a_message_that_storm_failed_spoils_the_run(topology, tmp_path):
    progress(tmp_path, 2, 1, 0)
    topology.wait_for_acks(1, 1.0)
    progress(tmp_path, 3, 2, 1)
    with pytest.raises(BenchError, match="1 messages of Storm failed"):
        topology.wait_for_acks(2, 1.0)
