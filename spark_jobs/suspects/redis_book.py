"""The case book in Redis: one hash per topology.

Each bolt task has a field with its suspects, one with its current work, and one with the step after
which its last processes began, and their number.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import redis

from tiercel.acker.layout import topology_prefix
from tiercel.acker.ledger import Token
from tiercel.acker.redis.errors import translated
from tiercel.spark_jobs.suspects.book import Case, Suspect, decode_suspects, encode_suspects

log = logging.getLogger(__name__)

_DOING = ":doing"
_BEGAN = ":began"
# How long the book of a topology that no longer runs is kept. It has to outlive any call of a bolt,
# because only an attempt that begins renews this.
_KEPT = timedelta(days=30)


class RedisCaseBook:
    """The open cases of one topology, one per bolt task, on one Redis server.

    Losing them is safe: one more process dies until the tuple is found again.

    Takes over ``client``, which must not decode responses. Thread-safe. Raises
    RedisUnavailableError while the server does not answer.
    """

    def __init__(self, client: redis.Redis, topology: str) -> None:
        self._client = client
        self._key = topology_prefix(topology) + "suspects"

    def load(self, token: Token) -> Case:
        """The case of this task, empty if there is none. Forgets cases of earlier runs."""
        now = f"{token.run}:{token.step}:".encode()
        with translated("look for suspects", self._client):
            cases: Any = self._client.hgetall(self._key)
            old = [field for field in cases if not field.startswith(now)]
            if old:
                self._client.hdel(self._key, *old)
        return _case(cases, _field(token))

    def guilty(self, token: Token) -> frozenset[int]:
        """Return the roots of all guilty tuples of the run, of any task."""
        with translated("look for suspects", self._client):
            cases: Any = self._client.hgetall(self._key)
        now = f"{token.run}:"
        return frozenset().union(
            *(_case(cases, field).guilty for field in _fields(cases) if field.startswith(now))
        )

    def begin(self, token: Token, case: Case) -> None:
        """Replace the whole case, for an attempt that begins."""
        field = _field(token)
        with (
            translated("note the suspects", self._client),
            self._client.pipeline(transaction=True) as pipeline,
        ):
            pipeline.hset(self._key, field, encode_suspects(case.suspects))
            pipeline.hdel(self._key, field + _DOING)
            pipeline.pexpire(self._key, _KEPT)
            pipeline.execute()
        self.note(token, case.doing)

    def note(self, token: Token, doing: Suspect | None) -> None:
        """Record the work of the process from now on; None if no tuple is to blame.

        Once this has returned, the record outlives the process. None can also be noted on a server
        that is out of memory.
        """
        field = _field(token) + _DOING
        with translated("note a suspect", self._client):
            if doing is None:
                self._client.hdel(self._key, field)
            else:
                self._client.hset(self._key, field, encode_suspects((doing,)))

    def cases(self) -> list[Case]:
        """Return all cases, for a driver that begins a run."""
        with translated("take over the suspects", self._client):
            cases: Any = self._client.hgetall(self._key)
        return [_case(cases, field) for field in _fields(cases)]

    def begins(self, token: Token, step: int) -> None:
        """Note that another process begins after this finished step."""
        count = self.begun(token, step) + 1
        with translated("note a beginning", self._client):
            self._client.hset(self._key, _field(token) + _BEGAN, f"{step} {count}")
            self._client.pexpire(self._key, _KEPT)

    def begun(self, token: Token, step: int) -> int:
        """Return how many processes in a row have begun after this finished step."""
        with translated("look for beginnings", self._client):
            said: Any = self._client.hget(self._key, _field(token) + _BEGAN) or b"0 0"
        before, count = map(int, said.split())
        return count if before == step else 0

    def forget(self) -> None:
        """Delete all cases, after their failures were reported. Idempotent."""
        with translated("forget the suspects", self._client):
            self._client.delete(self._key)

    def close(self) -> None:
        """Release the connections. Idempotent."""
        self._client.close()


def _field(token: Token) -> str:
    return f"{token.run}:{token.step}:{token.task}"


def _fields(cases: Mapping[bytes, bytes]) -> set[str]:
    names = (name.decode(errors="replace") for name in cases)
    return {name.removesuffix(_DOING) for name in names if not name.endswith(_BEGAN)}


def _case(cases: Mapping[bytes, bytes], field: str) -> Case:
    suspects = _suspects(cases, field)
    doing = _suspects(cases, field + _DOING)
    return Case(doing=doing[0] if doing else None, suspects=suspects)


def _suspects(cases: Mapping[bytes, bytes], field: str) -> tuple[Suspect, ...]:
    try:
        return decode_suspects(cases.get(field.encode(), b"[]"))
    except ValueError as error:
        log.warning(
            "skipping the suspects %r in Redis: %s; a message that kills a process has to do "
            "so once more", field, error,
            extra={"event": "suspects_unreadable"},
        )  # fmt: skip
        return ()
