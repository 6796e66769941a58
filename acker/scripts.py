"""The Lua scripts of one shard, each as one typed function. They raise the client's errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import numpy as np
import redis
from numpy.typing import NDArray
from redis.commands.core import Script

from acker.layout import Lifetimes, ShardKeys, fields, groups_of, pack_failure, records, unpack_roots
from acker.ledger import Applied, Ids, Reply, Token
from acker.work import Work, conflict_of

_APPLIED = (Applied.FRESH, Applied.REPEATED, Applied.CONFLICTING)


@dataclass(slots=True)
class Noted:
    """What a shard's server has confirmed to one owner, and must know for ever after."""

    calls: int = 0
    """Calls of ``register``."""


class ShardScripts:
    """Runs the scripts on one shard. Every method is one call of a few thousand roots at most, ascending."""

    def __init__(self, client: redis.Redis, keys: ShardKeys, lifetimes: Lifetimes, incarnation: bytes = b"\0\0") -> None:
        """``incarnation``, two bytes, of the owners that register through this."""
        self._keys = keys
        self._tokens_ms = lifetimes.tokens_ms
        self._marks_ms = lifetimes.marks_ms
        self._incarnation = incarnation
        self._noted: dict[int, Noted] = {}
        self._common = (len(keys.feeds), lifetimes.entries_ms)
        prelude = script_source("outcomes")
        self._register, self._apply, self._settle, self._reset_timeout = (
            client.register_script(prelude + script_source(name)) for name in ("register", "apply", "settle", "reset_timeout")
        )

    def noted(self, owner: int) -> Noted:
        """What the server must know of this owner."""
        return self._noted.setdefault(owner, Noted())

    def register(self, owner: int, roots: Ids, ack_vals: Ids) -> list[int]:
        """Returns the roots that collide."""
        groups = groups_of(roots)
        packed = records(roots, ack_vals).tobytes()
        args: list[Any] = [*self._common, self._incarnation + owner.to_bytes(2), self._tokens_ms, self._marks_ms]
        for group in groups:
            args += (group.high, packed[13 * group.start : 13 * group.end])
        counted = [self._keys.receipt(packed), self._keys.registered(owner)]
        collided, count = self._call(self._register, [*counted, *self._keys.buckets(groups)], args)
        self.noted(owner).calls = max(self.noted(owner).calls, count)
        return unpack_roots(collided)

    def apply(self, token: Token, digest: bytes, number: int, work: Work) -> Reply:
        """One slice, the ``number``-th, of work with this digest."""
        groups = groups_of(work.roots)
        numbers, reasons = _number_reasons(work, [pack_failure(conflict_of(0))])
        updates, failures = records(work.roots, work.xors), records(work.roots, numbers, width=2)
        failing = work.reasons >= 0
        updates_only = not failing.any()
        packed = updates.tobytes()
        args: list[Any] = [*self._common, digest, number.to_bytes(2), self._tokens_ms, len(groups)]
        for group in groups:
            if updates_only:
                args += (group.high, packed[13 * group.start : 13 * group.end], b"")
            else:
                part = np.s_[group.start : group.end]
                fails = failing[part]
                args += (group.high, updates[part][~fails].tobytes(), failures[part][fails].tobytes())
        keys = [self._keys.token(token), *self._keys.buckets(groups)]
        applied, completed, failed, late = self._call(self._apply, keys, [*args, *reasons])
        return Reply(applied=_APPLIED[applied], completed=completed, failed=failed, late=late)

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


@cache
def script_source(name: str, package: str = "acker") -> str:
    """The text of a script in the folder ``lua/`` of a package."""
    return resources.files(package).joinpath("lua", f"{name}.lua").read_text()
