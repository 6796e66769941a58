"""Spark's settings: where each applies, and which are refused before anything starts."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tiercel.spark_jobs.errors import SparkUnavailableError, how_jvm_ended
from tiercel.spark_jobs.spark import settings as spark_settings
from tiercel.spark_jobs.spark.session import cause_of, check_versions, reachable_here
from tiercel.spark_jobs.spark.settings import (
    ATTEMPTS,
    SMALL_JVM,
    memory_warning,
    quoted,
    settings_of,
)

CLUSTERS = ["spark://host:7077", "yarn", "k8s://https://host"]
ONE_MACHINE = ["local", "local[2]", "local[*]", "local-cluster[2,1,1024]"]


def settings(master: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    return settings_of("words", master, options or {}, ["-Da=b"])


@pytest.mark.parametrize("master", [*ONE_MACHINE, *CLUSTERS])
def test_a_job_of_months_does_not_end_by_failures_that_add_up(master: str) -> None:
    found = settings(master)
    assert int(found["spark.task.maxFailures"]) == ATTEMPTS
    assert found["spark.excludeOnFailure.enabled"] == "false"
    assert found["spark.dynamicAllocation.enabled"] == "false"


@pytest.mark.parametrize("master", [*ONE_MACHINE, *CLUSTERS])
def test_spark_s_page_has_no_kill_buttons(master: str) -> None:
    assert settings(master)["spark.ui.killEnabled"] == "false"


@pytest.mark.parametrize("master", ONE_MACHINE)
def test_on_one_machine_strangers_get_nothing_and_the_jvm_is_small(master: str) -> None:
    found = settings(master)
    assert found["spark.authenticate"] == found["spark.network.crypto.enabled"] == "true"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert SMALL_JVM in found["spark.driver.extraJavaOptions"]
    assert "-Da=b" in found["spark.driver.extraJavaOptions"]
    assert found["spark.executor.extraJavaOptions"] == f"{SMALL_JVM} -Da=b"


def test_a_checkout_may_lie_in_a_folder_with_a_space_in_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_settings, "_LOG4J", "/home/me/a folder/log4j2.properties")
    found = settings("local[2]")["spark.driver.extraJavaOptions"]
    assert shlex.split(found)[0] == "-Dlog4j2.configurationFile=/home/me/a folder/log4j2.properties"


@pytest.mark.parametrize(
    "path", ["/a folder", '/a "quoted" folder', "/a\\folder", "/it's", "/plain"]
)
def test_an_option_is_one_word_of_a_list_whatever_its_path_has_in_it(path: str) -> None:
    assert shlex.split(f"-Xa {quoted(path)} -Xb") == ["-Xa", path, "-Xb"]


@pytest.mark.parametrize("master", CLUSTERS)
def test_the_jvms_and_addresses_of_a_cluster_are_the_operator_s(master: str) -> None:
    found = settings(master)
    assert not [
        name
        for name in found
        if "JavaOptions" in name or name.startswith(("spark.driver.", "spark.authenticate"))
    ]
    assert found["spark.executor.failuresValidityInterval"] == "1h"
    assert int(found["spark.executor.maxNumFailures"]) > 1_000


def test_options_lie_over_the_defaults() -> None:
    options = {
        "spark.ui.enabled": "true",
        "spark.driver.extraJavaOptions": "-Xmx2g",
        "spark.master": "ignored",
    }
    found = settings("local[2]", options)
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.extraJavaOptions"] == "-Xmx2g"
    assert found["spark.master"] == f"local[2,{ATTEMPTS}]"
    assert found["spark.app.name"] == "words"


@pytest.mark.parametrize("name", ["spark.speculation", "spark.dynamicAllocation.enabled"])
def test_what_tiercel_does_not_run_with_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(SparkUnavailableError, match=rf"cannot run with {name}.*remove it from"):
        settings("spark://host:7077", {name: "True"})
    assert settings("spark://host:7077", {name: "false"})[name] == "false"


def test_the_module_that_forks_the_workers_is_there() -> None:
    assert importlib.util.find_spec(settings("local")["spark.python.daemon.module"]) is not None


RAISED = """An error occurred while calling None.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'x'
\tat a.B
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Java gateway process exited", "Java gateway process exited"),
        (RAISED, "org.apache.spark.SparkException: Could not parse Master URL: 'x'"),
        (f"{RAISED}Caused by: a.D: no\n\tat a.E\nCaused by: a.F: refused\n", "a.F: refused"),
    ],
)
def test_an_error_of_the_start_shows_sparks_cause(said: str, cause: str) -> None:
    assert cause_of(said) == cause


@pytest.mark.parametrize(
    ("memory", "cores", "each"),
    [
        ("1g", None, "1,024"), ("2047", None, "2,047"), ("2G", "2", "1,024"), ("512mb", "4", "128"),
        ("2g", None, None), ("2048", None, None), ("1t", "8", None), ("8g", "4", None),
        ("much", None, None), ("1g", "many", "1,024"),
    ],
)  # fmt: skip
def test_python_processes_that_may_have_too_little_memory_to_start_are_warned_of(
    memory: str, cores: str | None, each: str | None
) -> None:
    options = {"spark.executor.pyspark.memory": memory}
    if cores is not None:
        options["spark.executor.cores"] = cores
    said = memory_warning(settings("local[2]", options))
    assert (
        said.startswith(f"spark.executor.pyspark.memory leaves {each} MiB ") if each else not said
    )
    assert memory_warning(settings("local[2]")) == ""


def java_in(folder: Path, version: str) -> str:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return str(folder)


def test_java_is_looked_for_where_spark_takes_it_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes the one in JAVA_HOME, else the one on PATH."""
    old, new = java_in(tmp_path / "old", "11.0.2"), java_in(tmp_path / "new", "17.0.9")
    monkeypatch.setenv("PATH", f"{old}/bin:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", new)
    check_versions()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    with pytest.raises(SparkUnavailableError, match=r"from JAVA_HOME, and there is no program .*"):
        check_versions()
    for home in ("", None):
        monkeypatch.setenv("JAVA_HOME", "") if home == "" else monkeypatch.delenv("JAVA_HOME")
        with pytest.raises(SparkUnavailableError, match=f"{old}/bin/java is 11"):
            check_versions()


def test_a_java_that_a_limit_stops_is_not_called_old() -> None:
    """The real JVM, with less address space than it reserves."""
    check = "from tiercel.spark_jobs.spark.session import check_versions; check_versions()"
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -v 2500000; exec "$@"', "sh", sys.executable, "-c", check],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.splitlines()[-1]
    assert "Spark needs Java 17 or newer" in said
    assert "java does not start (Could not " in said
    assert "see ulimit -u and -v, or apt-get install openjdk-17-jre-headless" in said


def test_a_user_without_a_name_is_told_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as any number; Hadoop's login ends the JVM if the number has no name."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(SparkUnavailableError, match=rf"user id {os.getuid()}, .* add a row: echo"):
        check_versions()


@pytest.mark.parametrize(
    ("limit", "folder", "encoding", "said"),
    [
        ("128", "plain", "C.UTF-8", "may open only 128 files: raise the limit, as with ulimit -n"),
        ("1024", "na\u00efve", "C", "in this locale .* set LC_ALL=C.UTF-8"),
    ],
)
def test_a_process_that_java_cannot_start_from_is_told_so_in_one_line(
    tmp_path: Path, limit: str, folder: str, encoding: str, said: str
) -> None:
    (tmp_path / folder).mkdir()
    limited = f'ulimit -n {limit}; exec "$@"'
    ended = subprocess.run(
        ["/bin/bash", "-c", limited, "bash", sys.executable, "-m", "tiercel", "check"],
        cwd=tmp_path / folder,
        env={
            **os.environ,
            "LC_ALL": encoding,
            "PYTHONPATH": str(Path(__file__).parents[4]),
            "XDG_RUNTIME_DIR": str(tmp_path),
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    *_, line = ended.stdout.splitlines()
    assert re.match(f"error    spark: Spark cannot start .*{said}", line), ended.stdout


def test_a_machine_whose_name_has_no_address_is_reached_by_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java would look the name up, and end; a cluster needs an address that others reach."""

    def given(master: str) -> str | None:
        with reachable_here(master):
            return os.environ.get("SPARK_LOCAL_IP")

    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert [given(master) for master in ONE_MACHINE] == [None] * 4
    monkeypatch.setattr("socket.gethostname", lambda: "no-such-name.invalid")
    assert [given(master) for master in ONE_MACHINE] == ["127.0.0.1"] * 4
    assert [given(master) for master in CLUSTERS] == [None] * 3
    assert "SPARK_LOCAL_IP" not in os.environ
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.9")
    assert given("local") == os.environ["SPARK_LOCAL_IP"] == "127.0.0.9"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "kill -9 $$",
            "was killed by SIGKILL: by hand, or by the kernel because the machine was",
        ),
        ("kill -6 $$", "was ended by SIGABRT: its last lines"),
        ("exit 143", "was ended by SIGTERM: its last lines"),
        ("exit 52", "has ended with exit code 52: its last lines"),
        ("exit 0", "has ended with exit code 0: its last lines"),
    ],
)
def test_a_jvm_that_has_ended_is_told_by_its_exit_code_or_signal(command, says):
    code = subprocess.run(["sh", "-c", command], check=False).returncode
    assert how_jvm_ended(code).startswith(f"Spark's JVM {says}")
