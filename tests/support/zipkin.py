"""Zipkin, a trace viewer with a page: it gets the spans that a receiver of OTLP got."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.entered import Entered
from tests.support.otlp import Arrived
from tests.support.waiting import wait_until
from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.compose.install import find_java
from tiercel.compose.server import free_port

_VERSION = "3.6.1"
_JAR = f"zipkin-server-{_VERSION}-exec.jar"
_SHA256 = "d8326e0ed4f43855dba81228f688554706e52578a7c782d9a90b73f8680654a1"
_CACHE = Path(__file__).parents[2] / ".cache"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.9.0:copy"


class Zipkin(Entered):
    """A server that keeps the last traces in memory. Its file of 135 MB is downloaded once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"

    def _enter(self, exits: ExitStack) -> None:
        argv = [str(find_java()), "-Xmx192m", "-XX:TieredStopAtLevel=1", "-jar", str(_fetched())]
        argv += [f"--server.port={self.url.rpartition(':')[2]}"]
        process = GuardedProcess(Launch(argv=argv, output=self._folder / "zipkin.log"))
        exits.callback(process.kill)
        wait_until(lambda: self._answers("health"), 120, "Zipkin to start")

    def take(self, spans: Iterable[Arrived]) -> None:
        """Send these spans to Zipkin."""
        body = json.dumps([_span(span) for span in spans]).encode()
        request = urllib.request.Request(
            f"{self.url}/api/v2/spans", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=30).close()

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans of a trace as the page gets them; none if it is unknown."""
        found: list[dict[str, Any]] = self._answers(f"api/v2/trace/{trace_id}") or []
        return found

    def _answers(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"{self.url}/{path}", timeout=10) as answer:
                return json.load(answer)
        except OSError:  # Zipkin is starting, or does not know the trace
            return None


def _fetched() -> Path:
    """Return the server's file, which Maven downloads once, from the sources of this machine's
    settings.
    """
    kept = _CACHE / _JAR
    if not kept.exists():
        _CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
            subprocess.run(
                ["mvn", "--batch-mode", "--quiet", _COPY, f"-DoutputDirectory={folder}",
                 f"-Dartifact=io.zipkin:zipkin-server:{_VERSION}:jar:exec"],
                check=True,
            )  # fmt: skip
            part = Path(folder, _JAR)
            assert hashlib.sha256(part.read_bytes()).hexdigest() == _SHA256, "it is another file"
            part.rename(kept)
    return kept


def _span(span: Arrived) -> dict[str, Any]:
    """Return the span in Zipkin's form."""
    found: dict[str, Any] = {
        "traceId": span.trace_id,
        "id": span.span_id,
        "name": span.name,
        "timestamp": span.start_ns // 1000,
        "duration": max(1, (span.end_ns - span.start_ns) // 1000),
        "localEndpoint": {"serviceName": span.service},
        "tags": span.attributes,
    }
    return {**found, "parentId": span.parent_id} if span.parent_id else found
