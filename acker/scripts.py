"""The Lua scripts of one shard, each as one typed function. They raise the client's errors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, partial
from importlib import resources
from typing import Any, Literal

import numpy as np
import redis
from numpy.typing import NDArray
from redis.commands.core import Script

from acker.effects import Effect, LocalEffect
from acker.layout import Lifetimes, ShardKeys, fields, groups_of, pack_failure, records, unpack_roots
from acker.ledger import Applied, Ids, Reply, Token
from acker.redis_client import translated
from acker.work import Work, conflict_of

_APPLIED = (Applied.FRESH, Applied.REPEATED, Applied.CONFLICTING, Applied.STALE)


class ShardScripts:
    """Runs the scripts on one shard. Every method is one call of a few thousand roots at most, ascending."""

    def __init__(self, client: redis.Redis, keys: ShardKeys, lifetimes: Lifetimes) -> None:
        self._keys, self._receipts_ms = keys, lifetimes.receipts_ms
        self._common = (len(keys.feeds), lifetimes.entries_ms)
        self._register = client.register_script(_joined("outcomes", "register"))
        self._apply = client.register_script(_joined("outcomes", "steps", "apply"))
        self._settle = client.register_script(_joined("outcomes", "settle"))
        self._reset_timeout = client.register_script(_joined("outcomes", "reset_timeout"))
        self._begin = client.register_script(script_source("begin"))
        self._fence = client.register_script(script_source("fence"))

    def register(self, owner: int, roots: Ids, ack_vals: Ids) -> list[int]:
        """Returns the roots that collide."""
        groups = groups_of(roots)
        packed = records(roots, ack_vals).tobytes()
        args: list[Any] = [*self._common, owner.to_bytes(4), self._receipts_ms]
        for group in groups:
            args += (group.high, packed[13 * group.start : 13 * group.end])
        receipt = self._keys.receipt(packed)
        return unpack_roots(self._call(self._register, [receipt, *self._keys.buckets(groups)], args))

    def applying(self, token: Token, digest: bytes, number: int, work: Work) -> Effect[Reply]:
        """Prepare one slice, the ``number``-th, of work with this digest."""
        groups = groups_of(work.roots)
        numbers, reasons = _number_reasons(work, [pack_failure(conflict_of(0))])
        updates, failures = records(work.roots, work.xors), records(work.roots, numbers, width=2)
        failing = work.reasons >= 0
        updates_only = not failing.any()
        packed = updates.tobytes()
        position = struct.pack(">IQ", token.attempt, token.step)
        args: list[Any] = [*self._common, token.run, token.task, position, digest, number.to_bytes(2), len(groups)]
        for group in groups:
            if updates_only:
                args += (group.high, packed[13 * group.start : 13 * group.end], b"")
            else:
                part = np.s_[group.start : group.end]
                fails = failing[part]
                args += (group.high, updates[part][~fails].tobytes(), failures[part][fails].tobytes())
        keys = [*self._keys.feeds, self._keys.tokens, *self._keys.buckets(groups)]
        return LocalEffect(partial(self._applied, keys, [*args, *reasons]))

    def _applied(self, keys: Sequence[str], args: Sequence[Any]) -> Reply:
        with translated("apply updates"):
            applied, completed, failed, late = self._apply(keys=keys, args=args)
        return Reply(applied=_APPLIED[applied], completed=completed, failed=failed, late=late)

    def begin(self, run: str) -> bool:
        return bool(self._begin(keys=[self._keys.tokens], args=[run]))

    def fence(self, run: str, task: int, attempt: int) -> bool:
        return bool(self._fence(keys=[self._keys.tokens], args=[run, task, struct.pack(">I", attempt)]))

    def settle(self, kind: Literal["f", "r", "-"], work: Work) -> int:
        """Fail (for ``work``'s reasons), release or forget; returns how many were pending."""
        groups = groups_of(work.roots)
        numbers, reasons = _number_reasons(work, [])
        packed = records(work.roots, numbers, width=2).tobytes()
        args: list[Any] = [*self._common, kind, len(groups)]
        for group in groups:
            args += (group.high, packed[7 * group.start : 7 * group.end])
        return int(self._call(self._settle, self._keys.buckets(groups), [*args, *reasons]))

    def reset_timeout(self, roots: Ids) -> None:
        groups = groups_of(roots)
        packed = fields(roots).tobytes()
        args: list[Any] = [*self._common]
        for group in groups:
            args += (group.high, packed[5 * group.start : 5 * group.end])
        self._call(self._reset_timeout, self._keys.buckets(groups), args)

    def _call(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return script(keys=[*self._keys.feeds, *keys], args=args)


def _number_reasons(work: Work, first: Sequence[bytes]) -> tuple[NDArray[np.int64], list[bytes]]:
    """A number for the reason of each root, and the packed reasons by number, each once. ``first`` has the first numbers."""
    numbers = np.zeros(work.roots.size, np.int64)
    known = {reason: number for number, reason in enumerate(first)}
    for at in np.flatnonzero(work.reasons >= 0).tolist():
        numbers[at] = known.setdefault(pack_failure(work.failures[work.reasons[at]]), len(known))
    return numbers, list(known)


def _joined(*names: str) -> str:
    return "".join(script_source(name) for name in names)


@cache
def script_source(name: str, package: str = "acker") -> str:
    """The text of a script in the folder ``lua/`` of a package."""
    return resources.files(package).joinpath("lua", f"{name}.lua").read_text()
