"""The state of a stateful bolt during one step: begun before it, written at its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from typing import Any

from tiercel.acker.effects import Effect, Following
from tiercel.acker.ledger import Failure, Updates, canonical
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import raised, reason_of
from tiercel.spark_jobs.running.once import OnceStep
from tiercel.spark_jobs.state.encoding import Key
from tiercel.spark_jobs.state.key_value import KeyValueState, StateCache
from tiercel.spark_jobs.state.store import StateStore, StateTurn
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.grouping import Fields

# Performs the call that begins a turn, as soon as the last step is finished.
Begin = Callable[[Effect[StateTurn]], StateTurn]


class TaskStates:
    """The states of a bolt task in the steps of one attempt; empty for a bolt without a state."""

    def __init__(self, store: StateStore | None, topology: Topology) -> None:
        self._store = store
        self._topology = topology
        self._caches: dict[int, StateCache] = {}
        self._step = 0
        self._begin: Begin = Effect.perform
        self._begun: dict[int, KeyValueState] = {}
        # The turn that begins with the take of a step's tuples, and the step.
        self._ahead: Following[StateTurn] | None = None
        self._ahead_step = 0
        # States that are prepared to be written.
        self._writing: list[KeyValueState] = []

    def ahead(self, task_id: int, step: int) -> Following[StateTurn] | None:
        """Prepare to begin the turn of the task's next step together with the take of its tuples,
        which saves a round trip if the cache has all values.
        """
        if self._store is None:
            return None
        component = self._topology.component_of(task_id)
        index = self._cache(task_id, component).task_index
        self._ahead_step = step
        self._ahead = Following(self._store.begin(component, index, step))
        return self._ahead

    def at(self, step: int, begin: Begin) -> TaskStates:
        """Return the states in this step: none is in use yet."""
        if step != self._ahead_step:
            self._ahead = None
        self._step = step
        self._begin = begin
        self._begun = {}
        self._writing = []
        return self

    @property
    def begun(self) -> bool:
        """True if a state is in use and must be committed."""
        return bool(self._begun)

    @contextmanager
    def lent(self, task_id: int, bolt: StatefulBolt, record: Record) -> Iterator[None]:
        """Lend the bolt its state, with the values that its tuples need.

        The state is removed afterwards: otherwise it would go into the bolt's snapshot.

        Raises the errors of ``StateStore.begin`` and, if the bolt has ``once``, of
        ``StateTurn.recall``.
        """
        bolt.key_fields = _key_fields(self._topology, record.component)
        bolt.state = state = KeyValueState(self._cache(task_id, record.component))
        try:
            self._open(task_id, state, _keys(bolt, record))
            if bolt.once:
                record.once = OnceStep(bolt, state, record)
            yield
        finally:
            del bolt.state, bolt.key_fields

    def opened(self, task_id: int) -> KeyValueState:
        """Return the state of a bolt that only marks tuples. Raises like ``StateStore.begin``."""
        state = KeyValueState(self._cache(task_id, self._topology.component_of(task_id)))
        self._open(task_id, state, ())
        return state

    def _open(self, task_id: int, state: KeyValueState, keys: Sequence[Key]) -> None:
        component = self._topology.component_of(task_id)
        if self._store is None:
            raise ValueError(f"{component!r} has a state, and there is no store for it")
        index = self._caches[task_id].task_index
        unread = state.unread(keys)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.reply is not None:
            state.open(ahead.reply, keys, unread)
        else:
            state.open(self._begin(self._store.begin(component, index, self._step, unread)), keys)
        self._begun[task_id] = state

    def _cache(self, task_id: int, component: str) -> StateCache:
        cache = self._caches.get(task_id)
        if cache is None:
            index = task_id - self._topology.task_ids(component)[0]
            cache = StateCache(index, self._topology.spec(component).parallelism)
            self._caches[task_id] = cache
        return cache

    def forget(self, task_id: int) -> None:
        """Drop all writes of the bolt in this step: its ``flush`` raised."""
        if task_id in self._begun:
            self._begun[task_id].forget()

    def writing(self, updates: Updates, failures: Sequence[Failure]) -> list[Effect[bool]] | None:
        """Prepare the writes of all states; they come before the ledger gets these updates.

        Return None if an earlier attempt has committed this step with different work. Its writes
        stay, since its acks may have left; the new updates must not be applied, and their roots
        must be failed. Perform the calls as described in ``StateTurn.writing``; raises the errors
        of ``KeyValueState.writing``.
        """
        digest = canonical(updates, failures).digest.hex()
        begun = list(self._begun.values())
        self._begun = {}
        self._writing = []
        if any(state.committed_digest not in (None, digest) for state in begun):
            return None
        self._writing = begun
        return [effect for state in begun for effect in state.writing(digest)]

    def written(self) -> None:
        """Note that all calls of ``writing`` were made: the caches know these values now."""
        for state in self._writing:
            state.written()


def _keys(bolt: StatefulBolt, record: Record) -> list[Key]:
    by_default = type(bolt).state_keys is StatefulBolt.state_keys
    grouped: set[Any] = set()
    keys: list[Key] = []
    for origin, together in groupby(record.fresh, attrgetter("origin")):
        fields = bolt.key_fields.get((origin.component, origin.stream), ())
        if by_default and len(fields) == 1:
            at = origin.positions[fields[0]]
            # A list cannot be a key; the bolt gets the error when it uses the value as one.
            with suppress(TypeError):
                grouped.update([tup.values[at] for tup in together])
            continue
        for tup in together:
            if tup.is_tick:
                continue
            try:
                keys += bolt.state_keys(tup)
            except raised() as error:
                record.report(f"state_keys: {reason_of(error)}")
    return [*grouped, *keys]


def _key_fields(topology: Topology, component: str) -> Mapping[tuple[str, str], tuple[str, ...]]:
    return {
        (subscription.component, subscription.stream): subscription.grouping.fields
        for subscription in topology.bolts[component].subscriptions
        if isinstance(subscription.grouping, Fields)
    }
