"""helm, which neither Debian nor PyPI has: the machine's own, or one that Go builds once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pages import ROOT

CHART = ROOT / "compose" / "chart"
VERSION = "v3.19.5"
# The definition of ScaledObject, in KEDA's Go module.
KEDA = "v2.21.0"
SCALED_OBJECT = "config/crd/bases/keda.sh_scaledobjects.yaml"
_BUILT = ROOT / ".cache" / f"helm-{VERSION}"


def find_helm() -> Path:
    """Return the program; build it in two or three minutes if there is Go but no helm.

    Skips the test if there is neither; in CI this is a failure.
    """
    found = shutil.which("helm") or shutil.which("helm", path=str(_BUILT))
    if found is not None:
        return Path(found)
    go = _go("helm, or Go to build it")
    subprocess.run(
        [go, "install", "-trimpath", "-ldflags=-s -w", f"helm.sh/helm/v3/cmd/helm@{VERSION}"],
        env={**os.environ, "GOBIN": str(_BUILT), "GOFLAGS": ""},
        check=True,
    )
    return _BUILT / "helm"


def find_module(path: str, version: str) -> Path:
    """Return the folder of a Go module; Go downloads it once. Skips or fails as ``find_helm``."""
    found = subprocess.run(
        [_go("Go"), "mod", "download", "-json", f"{path}@{version}"],
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off"}, cwd="/",
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Path(json.loads(found.stdout)["Dir"])


def _go(needed: str) -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        message = f"tests of the chart need {needed}"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return go


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
