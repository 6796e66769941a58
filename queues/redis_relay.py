"""The relay in Redis: one stream a lane, all under one hash tag so that one server of a cluster holds them together."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib import resources
from typing import Any
from urllib.parse import quote

import redis

from queues.relay import Entry

log = logging.getLogger(__name__)

_WRITER_MEMORY = timedelta(minutes=10)
"""Longer than any client goes on repeating a call."""
_DRAIN_COUNT = 100
Translator = Callable[[str], AbstractContextManager[None]]
"""Turns the errors of a client into those of whoever opened it, given what is being done: "read the relay"."""


class RedisRelay:
    """``Relay`` on one Redis server. Takes over ``client``, which must not decode responses.

    One instance is one writer: append from one thread. The other calls may come from any.
    """

    def __init__(self, client: redis.Redis, topology: str, lanes: int, translated: Translator) -> None:
        self._client = client
        self._translated = translated
        # The hash tag is that of the topology's other keys.
        prefix = f"tiercel:{{{quote(topology, safe='')}}}:relay:"
        self._lanes = [f"{prefix}{lane}" for lane in range(lanes)]
        self._writer = f"{prefix}writer:{secrets.token_hex(8)}"
        self._attendance = f"{prefix}attendant"
        self._seals = f"{prefix}seals"
        self._sequence = 0
        self._unsure: Sequence[Entry] | None = None
        self._append = client.register_script(_source("append"))
        self._ends = client.register_script(_source("ends"))
        self._seal = client.register_script(_source("seal"))
        self._finish = client.register_script(_source("finish"))

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        # A call that failed may have taken effect. Repeated with the same entries it keeps its number, so that it cannot twice.
        if entries != self._unsure:
            self._sequence += 1
        self._unsure = entries
        keys = [self._writer, *(self._lanes[entry.lane] for entry in entries)]
        memory_ms = int(_WRITER_MEMORY.total_seconds() * 1000)
        with self._translated("append to the relay"):
            self._append(keys=keys, args=[self._sequence, memory_ms, *(entry.payload for entry in entries)])
        self._unsure = None

    def advance(self, start: Mapping[int, str], limit: int, wait: timedelta) -> dict[int, str]:
        with self._translated("read the relay"):
            ends = self._advanced(start, limit)
            if ends == dict(start) and wait:
                after = {self._lanes[lane]: position for lane, position in start.items()}
                if self._client.xread(after, count=1, block=max(1, int(wait.total_seconds() * 1000))):  # type: ignore[arg-type]
                    ends = self._advanced(start, limit)
        return ends

    def read(self, lane: int, start: str, end: str) -> list[bytes]:
        with self._translated("read the relay"):
            entries: Any = self._client.xrange(self._lanes[lane], f"({start}", end)
        return _payloads(lane, entries)

    def seal(self, lane: int, end: str) -> str:
        with self._translated("read the relay"):
            position: Any = self._seal(keys=[self._lanes[lane], self._seals], args=[_seal_of(lane, end), end])
        return str(position.decode())

    def finish(self, ends: Mapping[int, str]) -> dict[int, str]:
        keys = [self._seals, *(self._lanes[lane] for lane in ends)]
        args = [part for lane, end in ends.items() for part in (_seal_of(lane, end), end)]
        with self._translated("trim the relay"):
            positions: Any = self._finish(keys=keys, args=args)
        return {lane: position.decode() for lane, position in zip(ends, positions, strict=True)}

    def drain(self) -> list[bytes]:
        payloads: list[bytes] = []
        with self._translated("drain the relay"):
            self._client.delete(self._seals)
            for number, lane in enumerate(self._lanes):
                while entries := self._pop(lane):
                    payloads += _payloads(number, entries)
        return payloads

    def attend(self, run: str, during: timedelta) -> None:
        with self._translated("attend the relay"):
            self._client.set(self._attendance, run, px=max(1, int(during.total_seconds() * 1000)))

    def leave(self) -> None:
        with self._translated("leave the relay"):
            self._client.delete(self._attendance)

    def attendant(self) -> str | None:
        with self._translated("look at the relay"):
            run: Any = self._client.get(self._attendance)
        return None if run is None else run.decode(errors="replace")

    def length(self) -> int:
        with self._translated("measure the relay"), self._client.pipeline(transaction=False) as pipeline:
            for lane in self._lanes:
                pipeline.xlen(lane)
            return sum(pipeline.execute())

    def close(self) -> None:
        self._client.close()

    def _advanced(self, start: Mapping[int, str], limit: int) -> dict[int, str]:
        lanes = sorted(start)
        ends: Any = self._ends(keys=[self._lanes[lane] for lane in lanes], args=[limit, *(start[lane] for lane in lanes)])
        return {lane: position.decode() for lane, position in zip(lanes, ends, strict=True)}

    def _pop(self, lane: str) -> Any:
        # Read, then delete just what was read: an append in between stays for the new run.
        entries: Any = self._client.xrange(lane, count=_DRAIN_COUNT)
        if entries:
            self._client.xdel(lane, *(position for position, _ in entries))
        return entries


def _payloads(lane: int, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> list[bytes]:
    for position, fields in entries:
        if b"c" not in fields:
            log.warning(
                "passing over entry %s of lane %d of the relay: tiercel did not write it", position.decode(), lane,
                extra={"event": "entry_foreign"},
            )  # fmt: skip
    return [fields[b"c"] for _, fields in entries if b"c" in fields]


def _seal_of(lane: int, end: str) -> str:
    return f"{lane} {end}"


def _source(name: str) -> str:
    return resources.files("queues").joinpath("lua", f"{name}.lua").read_text()
