"""The counters in Redis: one hash for all time and one per slot of each window.

Redis also has the errors, their number per task, and the first traceback of each kind.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from tiercel.acker.layout import topology_prefix
from tiercel.acker.ledger import REASON_LENGTH
from tiercel.acker.metrics.contract import (
    DRIVER_TASK,
    ERRORS_A_WINDOW,
    ERRORS_KEPT,
    ERRORS_WINDOW,
    OTHER_KINDS,
    SLIDING,
    TRACES_KEPT,
    Counted,
    Counts,
    ErrorReport,
    KnownError,
    Metrics,
    TraceReport,
    Window,
    by_task,
    kind_of,
    known_errors,
    newest_first,
)
from tiercel.acker.redis.scripts import RedisEffect, RedisServer, nothing, pairs, script_source

R = TypeVar("R", ErrorReport, TraceReport)
_BOUNDS = (ERRORS_A_WINDOW, int(ERRORS_WINDOW.total_seconds() * 1000), ERRORS_KEPT)
_NAMES_KNOWN = 65_536
_MOVED_AT_ONCE = 1_000
# Longer than any client keeps repeating a call.
_REPORTER_MEMORY_MS = 600_000


class RedisMetrics(Metrics):
    """``Metrics`` on one server; thread-safe.

    Connects on its first call. Raises RedisUnavailableError, RedisRefusedError.
    """

    def __init__(self, url: str, topology: str, clock: Callable[[], float] = time.time) -> None:
        """``url`` may contain a password.

        ``clock`` returns seconds since the epoch, because all reporting processes must agree.
        """
        prefix = topology_prefix(topology)
        self._server = RedisServer(url, prefix)
        self._clock = clock
        self._reporter_key = f"{prefix}counted:{secrets.token_hex(8)}"
        self._number = 0
        # The counts that were sent with this number and are not confirmed yet.
        self._unsure: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._sending = threading.Lock()
        self._counts_key = prefix + "metrics"
        self._errors_key = prefix + "errors"
        self._windows_key = prefix + "error-windows"
        self._traces_keys = (prefix + "traces", prefix + "traces:last")
        self._since_key = prefix + "metrics:since"
        self._slot_prefix = prefix + "metrics:"
        self._count, self._report, self._trace, self._retire = (
            self._server.script(script_source(name, package="tiercel.acker.metrics"))
            for name in ("count", "report", "trace", "retire")
        )

    def add_all(self, counts: Mapping[tuple[str, int], Mapping[str, int]]) -> None:
        with self._sending:
            for (component, task), more in counts.items():
                for counter, count in more.items():
                    of_kind = kind_of(counter) is not None
                    name = _name(component, DRIVER_TASK if of_kind else task, counter)
                    self._waiting[name] = self._waiting.get(name, 0) + count
            # The previous call may have been counted although its reply was lost: repeated with the
            # same counts and number, it is not counted twice. New counts get the next number.
            if self._unsure:
                self._send()
            if self._waiting:
                self._number += 1
                self._unsure = self._waiting
                self._waiting = {}
                self._send()

    def _send(self) -> None:
        now = self._clock()
        slots = [self._slot(window, window.slot_at(now)) for window in SLIDING]
        # Keep slots longer than necessary, by the length of two: clocks may differ a little.
        kept_ms = [(window.value + 3 * window.slot_s) * 1000 for window in SLIDING]
        plain, of_kinds = _parted(self._unsure)
        keys = [self._reporter_key, self._since_key, self._traces_keys[0], self._counts_key, *slots]
        bounds = (self._number, _REPORTER_MEMORY_MS, now, len(of_kinds), *kept_ms)
        words = [*bounds, *of_kinds, *plain]
        self._count(keys, words, nothing, "count").perform()
        self._unsure = {}

    def report(self, errors: Sequence[ErrorReport]) -> None:
        for (component, task), reported in by_task(errors).items():
            # Errors beyond the bound of a window would not be kept.
            kept = [_packed(error) for error in reported[:ERRORS_A_WINDOW]]
            words = [*_BOUNDS, json.dumps([component, task]), *kept]
            keys = [self._errors_key, self._windows_key]
            self._report(keys, words, nothing, "report errors").perform()

    def over(self, window: Window) -> Counted:
        now = self._clock()
        since, found = self._read(self._keys_of(window, now))
        return Counted(counts=_counts(found), seconds=window.seconds_at(now, since))

    def slots(self) -> Sequence[Counted]:
        now = self._clock()
        window = Window.TEN_MINUTES
        since, found = self._read(self._keys_of(window, now))
        slots = [
            Counted(counts=_counts([slot]), seconds=window.slot_seconds_at(number, now, since))
            for number, slot in zip(window.slots_at(now), found, strict=True)
        ]
        return slots[::-1]

    def _read(self, keys: Sequence[str]) -> tuple[float | None, Sequence[Mapping[bytes, bytes]]]:
        """Return when counting began, and the counters at each key."""
        verb = "read the counters"
        hashes = [self._hash(key, verb) for key in keys]
        began: RedisEffect[Any] = self._server.command("GET", self._since_key, verb=verb)
        since, *found = self._server.perform([began, *hashes])
        return None if since is None else float(since), found

    def errors(self, limit: int = 50) -> list[ErrorReport]:
        if limit < 1:
            return []
        words = ("LRANGE", self._errors_key, 0, limit - 1)
        found = self._server.command(*words, read=list, verb="read the errors").perform()
        return newest_first(_unpacked(ErrorReport, one) for one in found)

    def trace(self, reports: Sequence[TraceReport]) -> None:
        if not reports:
            return
        words: list[str | float] = []
        for report in reports:
            words += (json.dumps(report.name), report.at.timestamp())
            # A report without a traceback only updates the time of the last one.
            short = replace(report, reason=report.reason[:REASON_LENGTH])
            words.append(_packed(short) if report.text else "")
        keys = [*self._traces_keys, self._counts_key]
        self._trace(keys, [TRACES_KEPT, *words], nothing, "keep tracebacks").perform()

    def traces(self) -> Sequence[KnownError]:
        reports_key, last_key = self._traces_keys
        verb = "read the tracebacks"
        words = ("ZRANGE", last_key, 0, -1, "WITHSCORES")
        last = self._server.command(*words, read=pairs, verb=verb)
        reports, when = self._server.perform([self._hash(reports_key, verb), last])
        found = [
            (_unpacked(TraceReport, one), datetime.fromtimestamp(float(when[name]), UTC))
            for name, one in reports.items()
            if name in when
        ]
        return known_errors(found, self.totals())

    def retire(self, is_over: Callable[[int], bool]) -> None:
        _, [found, kinds] = self._read([self._counts_key, self._traces_keys[0]])
        moves = [
            (name, target)
            for name in found
            if (target := _place_after(name, kinds, is_over)).encode() != name
        ]
        for start in range(0, len(moves), _MOVED_AT_ONCE):
            words = [word for move in moves[start : start + _MOVED_AT_ONCE] for word in move]
            self._retire([self._counts_key], words, nothing, "count").perform()

    def clear(self) -> None:
        keys = [
            self._counts_key,
            self._errors_key,
            self._windows_key,
            self._since_key,
            self._reporter_key,
            *self._traces_keys,
            *(key for window in SLIDING for key in self._keys_of(window, self._clock())),
        ]
        self._server.command("DEL", *keys, verb="clear the counters").perform()

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._server.close()

    def _hash(self, key: str, verb: str) -> RedisEffect[dict[bytes, bytes]]:
        return self._server.command("HGETALL", key, read=pairs, verb=verb)

    def _slot(self, window: Window, number: int) -> str:
        return f"{self._slot_prefix}{window.value}:{number}"

    def _keys_of(self, window: Window, now: float) -> list[str]:
        if window is Window.ALL_TIME:
            return [self._counts_key]
        return [self._slot(window, number) for number in window.slots_at(now)]


def _parted(counts: Mapping[str, int]) -> tuple[list[str | float], list[str | float]]:
    """Return the arguments of count.lua for counters of tasks, and for counters of kinds."""
    plain: list[str | float] = []
    of_kinds: list[str | float] = []
    for field, count in counts.items():
        component, _, counter = _parts(field)
        kind = kind_of(counter)
        if kind is None:
            plain += (field, count)
        else:
            name = json.dumps((component, *kind))
            of_kinds += (name, field, _name(component, DRIVER_TASK, OTHER_KINDS), count)
    return plain, of_kinds


def _place_after(name: bytes, kinds: Container[bytes], is_over: Callable[[int], bool]) -> str:
    """Return the field to which ``retire`` moves a counter; its own if it stays."""
    component, task, counter = _parts(name)
    kind = kind_of(counter)
    if kind is not None:
        kept = json.dumps((component, *kind)).encode() in kinds
        return _name(component, DRIVER_TASK, counter if kept else OTHER_KINDS)
    return _name(component, DRIVER_TASK if is_over(task) else task, counter)


def _counts(slots: Iterable[Mapping[bytes, bytes]]) -> Counts:
    counts: Counts = {}
    for slot in slots:
        for name, count in slot.items():
            component, task, counter = _parts(name)
            of_task = counts.setdefault(component, {}).setdefault(task, {})
            of_task[counter] = of_task.get(counter, 0) + int(count)
    return counts


@lru_cache(maxsize=_NAMES_KNOWN)
def _name(component: str, task: int, counter: str) -> str:
    return json.dumps([component, task, counter])


@lru_cache(maxsize=_NAMES_KNOWN)
def _parts(name: bytes | str) -> tuple[str, int, str]:
    component, task, counter = json.loads(name)
    return component, task, counter


def _packed(report: ErrorReport | TraceReport) -> str:
    """Encode a report for a store."""
    return json.dumps(astuple(report), default=datetime.isoformat)


def _unpacked(kind: type[R], found: bytes) -> R:
    """Decode a report that ``_packed`` encoded."""
    at, *rest = json.loads(found)
    names = [field.name for field in fields(kind)]
    values = [datetime.fromisoformat(at), *rest]
    if len(values) > len(names):
        raise ValueError("a report of a newer version")
    # An older version writes fewer fields.
    return kind(**dict(zip(names, values, strict=False)))
