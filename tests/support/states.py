"""Turns of a state store, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from tiercel import KeyValueState
from tiercel.acker.effects import perform_in_turn
from tiercel.acker.ledger import Applied
from tiercel.spark_jobs.state.encoding import Key
from tiercel.spark_jobs.state.key_value import StateCache
from tiercel.spark_jobs.state.store import StateStore, StateTurn, Writes


def begin(store: StateStore, component: str, task: int, step: int) -> StateTurn:
    """Begin a turn."""
    return store.begin(component, task, step).perform()


def commit_turn(turn: StateTurn, writes: Writes, digest: str) -> Applied:
    """Commit; writes that must not be made are prepared too."""
    assert all(perform_in_turn(turn.writing(writes, digest)))
    return verdict(turn.committed_digest, digest)


def break_off(turn: StateTurn, writes: Writes, calls: int) -> None:
    """Commit, but make only the first calls."""
    for effect in turn.writing(writes, "broken off")[:calls]:
        effect.perform()


def state_of(turn: StateTurn, task_index: int = 0, parallelism: int = 1) -> KeyValueState:
    """Return the state of a bolt in this turn."""
    state = KeyValueState(StateCache(task_index, parallelism))
    state.open(turn)
    return state


def begun(
    store: StateStore, component: str, task: int, step: int, keys: Iterable[Key] = ()
) -> KeyValueState:
    """Begin a turn that reads these keys at once; return a bolt's state in it."""
    state = KeyValueState(StateCache(task))
    state.open(store.begin(component, task, step, state.unread(keys)).perform())
    return state


def verdict(committed_digest: str | None, digest: str) -> Applied:
    """Return the verdict on work with this digest after an earlier attempt has committed the other
    one.
    """
    if committed_digest is None:
        return Applied.FRESH
    return Applied.REPEATED if committed_digest == digest else Applied.CONFLICTING
