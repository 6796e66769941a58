"""The Lua scripts of one shard, each as one typed function that prepares a call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.connection.script_sources import script_source
from tiercel.acker.connection.server import Reader, RedisScript, RedisServer
from tiercel.acker.effects import Effect
from tiercel.acker.layout import (
    Lifetimes,
    ShardKeys,
    fields,
    groups_of,
    pack_failure,
    records,
    unpack_roots,
)
from tiercel.acker.ledger import Applied, Ids, Reply, Token
from tiercel.acker.work import RootUpdates, conflict_of

T = TypeVar("T")
_CONFLICT = pack_failure(conflict_of(0))
_APPLIED = (Applied.FRESH, Applied.REPEATED, Applied.CONFLICTING, Applied.STALE)


@dataclass(slots=True)
class Noted:
    """State that a shard's server has confirmed to one owner, and must never lose afterwards."""

    # Calls of ``register``.
    calls: int = 0


class ShardScripts:
    """Prepares the calls of one shard: each of a few thousand roots at most, ascending."""

    def __init__(
        self,
        server: RedisServer,
        keys: ShardKeys,
        lifetimes: Lifetimes,
        incarnation: bytes = b"\0\0",
    ) -> None:
        """``incarnation``, two bytes, of the owners that register through this."""
        self._keys = keys
        self._receipts_ms = lifetimes.receipts_ms
        self._marks_ms = lifetimes.marks_ms
        self._incarnation = incarnation
        self._noted: dict[int, Noted] = {}
        self._common = (len(keys.feeds), lifetimes.entries_ms)
        self._register = server.script(script_source("outcomes", "register"))
        self._apply = server.script(script_source("outcomes", "steps", "apply"))
        self._remove = server.script(script_source("outcomes", "remove"))
        self._reset_timeout = server.script(script_source("outcomes", "reset_timeout"))
        self._begin = server.script(script_source("begin"))
        self._fence = server.script(script_source("fence"))

    def noted(self, owner: int) -> Noted:
        """Return what the server must know of this owner."""
        return self._noted.setdefault(owner, Noted())

    def register(self, owner: int, roots: Ids, ack_vals: Ids) -> Effect[list[int]]:
        """Returns the roots that collide."""
        groups = groups_of(roots)
        packed = records(roots, ack_vals).tobytes()
        args: list[Any] = [
            *self._common,
            self._incarnation + owner.to_bytes(2),
            self._receipts_ms,
            self._marks_ms,
        ]
        for group in groups:
            args += (group.high, packed[13 * group.start : 13 * group.end])
        keys = [
            self._keys.receipt(packed),
            self._keys.registered(owner),
            *self._keys.buckets(groups),
        ]

        def read(reply: Any) -> list[int]:
            collided, count = reply
            self.noted(owner).calls = max(self.noted(owner).calls, count)
            return unpack_roots(collided)

        return self._call(self._register, keys, args, read, "register roots")

    def apply(self, token: Token, digest: bytes, number: int, work: RootUpdates) -> Effect[Reply]:
        """One slice, the ``number``-th, of work with this digest."""
        groups = groups_of(work.roots)
        numbers, reasons = _number_reasons(work, [_CONFLICT])
        updates = records(work.roots, work.xors)
        failing = work.reasons >= 0
        updates_only = not failing.any()
        failures = updates if updates_only else records(work.roots, numbers, width=2)
        packed = updates.tobytes()
        position = struct.pack(">IQ", token.attempt, token.step)
        args: list[Any] = [*self._common, token.run, token.task, position]
        args += (digest, number.to_bytes(2), len(groups))
        for group in groups:
            if updates_only:
                args += (group.high, packed[13 * group.start : 13 * group.end], b"")
            else:
                part = np.s_[group.start : group.end]
                fails = failing[part]
                args += (
                    group.high,
                    updates[part][~fails].tobytes(),
                    failures[part][fails].tobytes(),
                )
        keys = [self._keys.tokens, *self._keys.buckets(groups)]
        return self._call(self._apply, keys, [*args, *reasons], _reply, "apply updates")

    def begin(self, run: str) -> Effect[bool]:
        return self._begin([self._keys.tokens], [run], bool, "begin a run")

    def fence(self, run: str, task: int, attempt: int) -> Effect[bool]:
        args = [run, task, struct.pack(">I", attempt)]
        return self._fence([self._keys.tokens], args, bool, "fence a task")

    def remove(self, kind: Literal["f", "r", "-"], work: RootUpdates, verb: str) -> Effect[int]:
        """Fail (for ``work``'s reasons), release or forget; returns how many were pending."""
        groups = groups_of(work.roots)
        numbers, reasons = _number_reasons(work, [])
        packed = records(work.roots, numbers, width=2).tobytes()
        args: list[Any] = [*self._common, kind, len(groups)]
        for group in groups:
            args += (group.high, packed[7 * group.start : 7 * group.end])
        return self._call(self._remove, self._keys.buckets(groups), [*args, *reasons], int, verb)

    def reset_timeout(self, roots: Ids, *, waiting: bool) -> Effect[None]:
        groups = groups_of(roots)
        packed = fields(roots).tobytes()
        args: list[Any] = [*self._common, "w" if waiting else "t"]
        for group in groups:
            args += (group.high, packed[5 * group.start : 5 * group.end])
        return self._call(
            self._reset_timeout, self._keys.buckets(groups), args, _nothing, "reset timeouts"
        )

    def _call(
        self,
        script: RedisScript,
        keys: Sequence[str],
        args: Sequence[Any],
        read: Reader[T],
        verb: str,
    ) -> Effect[T]:
        return script([*self._keys.feeds, *keys], args, read, verb)


def _reply(parts: Sequence[int]) -> Reply:
    applied, completed, failed, late = parts
    return Reply(applied=_APPLIED[applied], completed=completed, failed=failed, late=late)


def _nothing(_: object) -> None:
    pass


def _number_reasons(
    work: RootUpdates, first: Sequence[bytes]
) -> tuple[NDArray[np.int64], list[bytes]]:
    """A number for the reason of each root, and the packed reasons by number, each once.

    ``first`` has the first numbers.
    """
    numbers = np.zeros(work.roots.size, np.int64)
    known = {reason: number for number, reason in enumerate(first)}
    for at in (work.reasons >= 0).nonzero()[0].tolist():
        numbers[at] = known.setdefault(pack_failure(work.failures[work.reasons[at]]), len(known))
    return numbers, list(known)
