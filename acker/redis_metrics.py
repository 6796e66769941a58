"""The counters in Redis: a hash of counts, a list of errors, and a hash of how many errors each task reported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from acker.metrics import ERRORS_A_WINDOW, ERRORS_KEPT, ERRORS_WINDOW, ErrorReport, by_task
from acker.redis_client import connect, translated
from acker.scripts import script_source

_BOUNDS = (ERRORS_A_WINDOW, int(ERRORS_WINDOW.total_seconds() * 1000), ERRORS_KEPT)


class RedisMetrics:
    """``Metrics`` on one server; thread-safe. Connects on its first call. Raises LedgerUnavailableError, LedgerRefusedError."""

    def __init__(self, url: str, topology: str) -> None:
        """``url`` may hold a password."""
        self._client = connect(url)
        prefix = f"tiercel:{{{quote(topology, safe='')}}}:"
        self._counts_key = prefix + "metrics"
        self._errors_key = prefix + "errors"
        self._windows_key = prefix + "error-windows"
        self._report = self._client.register_script(script_source("report"))

    def add(self, component: str, task: int, counts: Mapping[str, int]) -> None:
        with translated("count"), self._client.pipeline(transaction=False) as pipeline:
            for counter, count in counts.items():
                pipeline.hincrby(self._counts_key, json.dumps([component, task, counter]), count)
            pipeline.execute()

    def report(self, errors: Sequence[ErrorReport]) -> None:
        for (component, task), reported in by_task(errors).items():
            # More than a window holds would not be kept.
            packed = [_pack(error) for error in reported[:ERRORS_A_WINDOW]]
            with translated("report errors"):
                self._report(
                    keys=[self._errors_key, self._windows_key], args=[*_BOUNDS, json.dumps([component, task]), *packed]
                )

    def totals(self) -> dict[str, dict[int, dict[str, int]]]:
        with translated("read the counters"):
            counts: Any = self._client.hgetall(self._counts_key)
        totals: dict[str, dict[int, dict[str, int]]] = {}
        for name, count in counts.items():
            component, task, counter = json.loads(name)
            totals.setdefault(component, {}).setdefault(task, {})[counter] = int(count)
        return totals

    def errors(self, limit: int = 50) -> list[ErrorReport]:
        if limit < 1:
            return []
        with translated("read the errors"):
            packed: Any = self._client.lrange(self._errors_key, 0, limit - 1)
        return [_unpack(one) for one in packed]

    def clear(self) -> None:
        with translated("clear the counters"):
            self._client.delete(self._counts_key, self._errors_key, self._windows_key)

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._client.close()


def _pack(error: ErrorReport) -> str:
    return json.dumps([error.at.isoformat(), error.component, error.task, error.message])


def _unpack(packed: bytes) -> ErrorReport:
    at, component, task, message = json.loads(packed)
    return ErrorReport(at=datetime.fromisoformat(at), component=component, task=task, message=message)
