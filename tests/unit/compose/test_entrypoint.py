"""The image's entry point runs a command unchanged, or an executor for Spark on Kubernetes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.pages import ROOT

ENTRYPOINT = ROOT / "compose" / "entrypoint.sh"
# As org.apache.spark.deploy.k8s.features.BasicExecutorFeatureStep sets them.
ASKED = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078", "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2", "SPARK_EXECUTOR_MEMORY": "1024m", "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2", "SPARK_EXECUTOR_POD_NAME": "exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_0": "-Da=two words", "SPARK_JAVA_OPT_1": "-Db=\"$(touch odd)`'",
}  # fmt: skip


def run(folder: Path, *command: str, **variables: str) -> list[str]:
    """Return each argument of the ``java`` that the entry point starts, or of the command."""
    for name in ("java", "show"):
        program = folder / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
        program.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    done = subprocess.run(
        [ENTRYPOINT, *command], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_a_command_is_started_as_it_is(tmp_path: Path) -> None:
    assert run(tmp_path, "show", "two words", "$x")[1:] == ["two words", "$x"]


def test_an_executor_has_what_spark_asks_for(tmp_path: Path) -> None:
    folder, *told = run(tmp_path, "executor", SPARK_HOME="/spark", **ASKED)
    assert folder == str(tmp_path)
    main = told.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert told[:main] == [
        ASKED["SPARK_JAVA_OPT_0"], ASKED["SPARK_JAVA_OPT_1"], "-Xms1024m", "-Xmx1024m",
        "-cp", "/opt/spark/conf:/spark/jars/*:/opt/tiercel/conf",
    ]  # fmt: skip
    options = dict(zip(told[main + 1 :: 2], told[main + 2 :: 2], strict=True))
    assert options == {
        "--driver-url": ASKED["SPARK_DRIVER_URL"], "--executor-id": "3", "--cores": "2",
        "--app-id": "app", "--hostname": "10.0.0.2", "--resourceProfileId": "0",
        "--podName": "exec-3",
    }  # fmt: skip
    assert not (tmp_path / "odd").exists()


def test_the_image_has_it() -> None:
    assert 'ENTRYPOINT ["/opt/entrypoint.sh"]' in (ROOT / "compose" / "Dockerfile").read_text()
