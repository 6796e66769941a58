"""The archive of Spark's classes is used if present and replaced atomically; without it nothing
changes.
"""

from pathlib import Path

import pytest

from tiercel.spark_jobs.errors import SparkUnavailableError
from tiercel.spark_jobs.spark import session
from tiercel.spark_jobs.spark.session import archive_path, reading_options, writing_options


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for Spark's."""
    monkeypatch.setattr(session.pyspark, "__file__", str(tmp_path / "__init__.py"))
    return tmp_path


def _part(options: tuple[str, ...]) -> Path:
    start = '"-XX:ArchiveClassesAtExit='
    [named] = [option for option in options if option.startswith(start)]
    return Path(named.removeprefix(start).removesuffix('"'))


def test_without_an_archive_java_is_told_nothing(beside: Path) -> None:
    assert archive_path().parent == beside
    assert reading_options() == ()


def test_an_archive_that_is_there_is_used(beside: Path) -> None:
    archive_path().touch()
    assert f'"-XX:SharedArchiveFile={beside / "tiercel.jsa"}"' in reading_options()


def test_what_java_wrote_takes_the_place_of_the_old_archive(beside: Path) -> None:
    archive_path().write_text("old")
    with writing_options() as options:
        _part(tuple(options)).write_text("new")
        assert archive_path().read_text() == "old"
    assert archive_path().read_text() == "new"
    assert [path.name for path in beside.iterdir()] == ["tiercel.jsa"]


def test_a_java_that_wrote_nothing_leaves_the_old_archive(beside: Path) -> None:
    archive_path().write_text("old")
    with pytest.raises(SparkUnavailableError, match="Java wrote no archive"), writing_options():
        pass
    assert archive_path().read_text() == "old"


def test_an_error_leaves_no_half_archive(beside: Path) -> None:
    def fail() -> None:
        with writing_options() as options:
            _part(tuple(options)).write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(beside.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.os, "access", lambda path, mode: path != beside)
    with (
        pytest.raises(SparkUnavailableError, match=f"cannot write {archive_path()}: run it as"),
        writing_options(),
    ):
        pass
