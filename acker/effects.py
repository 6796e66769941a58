"""Calls of several stores that are sent together: one round trip per server for a whole commit.

A store that takes part in a commit hands out *effects*: calls that are prepared but not yet made.
``perform_all`` makes the calls of each server in the order given; ``perform_in_turn`` makes each
call only if the reply to the one before is true. Stores in memory hand out ``LocalEffect``, stores
in Redis ``RedisEffect``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Effect(Protocol[T_co]):
    """One prepared call. It may be repeated unchanged: its server recognises a repeat."""

    def perform(self) -> T_co:
        """Make this call alone and return its reply. Raises the errors of its store."""


@dataclass(frozen=True, slots=True)
class LocalEffect(Generic[T]):
    """An effect within this process."""

    perform: Callable[[], T]


@dataclass(slots=True)
class Following(Generic[T]):
    """A call to make in the same round trip as another call, if that one finds something."""

    effect: Effect[T]
    # Its reply, once it was made.
    reply: T | None = None


class Pipeline(Protocol):
    """A connection that makes several prepared calls in one round trip."""

    def perform(self, effects: Sequence[Any]) -> list[Any]:
        """Make all calls in order, then raise the first error if there was one."""

    def perform_in_turn(self, effects: Sequence[Any]) -> list[Any]:
        """Make each call only if the reply to the one before is true; return all replies."""


def perform_all(effects: Sequence[Effect[Any]]) -> list[Any]:
    """Make all calls, with one round trip per server; return the replies in order.

    Calls of one server take effect in the order given; across servers there is no order. If
    one call raises, the others may or may not have taken effect: repeat all of them.
    """
    replies: list[Any] = [None] * len(effects)
    together: dict[Pipeline, list[int]] = {}
    for at, effect in enumerate(effects):
        pipeline = _pipeline_of(effect)
        if pipeline is None:
            replies[at] = effect.perform()
        else:
            together.setdefault(pipeline, []).append(at)
    for pipeline, positions in together.items():
        found = pipeline.perform([effects[at] for at in positions])
        for at, reply in zip(positions, found, strict=True):
            replies[at] = reply
    return replies


def perform_in_turn(effects: Sequence[Effect[Any]]) -> list[Any]:
    """Make each call only if the reply to the one before is true, that is, if it went well.

    Return the replies of the calls that were made.

    Consecutive calls of one server take one round trip, and are atomic as long as they are small.
    If a call raises, the calls before it were made and the calls after it were not: repeat all of
    them. Works across servers, with a round trip for each change of server.
    """
    replies: list[Any] = []
    for pipeline, together in groupby(effects, _pipeline_of):
        mine = list(together)
        made = perform_singly(mine) if pipeline is None else pipeline.perform_in_turn(mine)
        replies += made
        if len(replies) < len(effects) and (len(made) < len(mine) or not made[-1]):
            break
    return replies


def on_one_server(effects: Sequence[Effect[Any]]) -> bool:
    """Return True if one round trip makes all calls; also for stores in memory."""
    # Each store has its own ``pipeline`` object per server; they compare equal.
    return len(set(map(_pipeline_of, effects))) == 1


def _pipeline_of(effect: Effect[Any]) -> Pipeline | None:
    return getattr(effect, "pipeline", None)


def perform_singly(effects: Sequence[Effect[Any]]) -> list[Any]:
    """Like ``perform_in_turn``, with a round trip for each call."""
    replies: list[Any] = []
    for effect in effects:
        if replies and not replies[-1]:
            break
        replies.append(effect.perform())
    return replies
