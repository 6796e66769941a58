"""The state of a stateful bolt during one step: begun before it, written at its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter

from tiercel.acker.effects import Effect
from tiercel.acker.ledger import Failure, Updates, canonical
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import RAISED, reason_of
from tiercel.spark_jobs.running.once import OnceStep
from tiercel.spark_jobs.state.encoding import Key
from tiercel.spark_jobs.state.key_value import KeyValueState
from tiercel.spark_jobs.state.store import StateStore, StateTurn
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.grouping import Fields

# Performs the call that begins a turn, as soon as the last step is finished.
Begin = Callable[[Effect[StateTurn]], StateTurn]


class TaskStates:
    """The states of a bolt task in one step; empty for a bolt without a state."""

    def __init__(
        self, store: StateStore | None, topology: Topology, step: int, begin: Begin
    ) -> None:
        self._store = store
        self._topology = topology
        self._step = step
        self._begin = begin
        self._begun: dict[int, KeyValueState] = {}

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
        if self._store is None:
            raise ValueError(
                f"{record.component!r} is a StatefulBolt, and there is no store for its state"
            )
        parallelism = self._topology.spec(record.component).parallelism
        index = task_id - self._topology.task_ids(record.component)[0]
        bolt.key_fields = _key_fields(self._topology, record.component)
        bolt.state = state = KeyValueState(index, parallelism)
        try:
            beginning = self._store.begin(
                record.component, index, self._step, state.fields(_keys(bolt, record))
            )
            state.open(self._begin(beginning))
            self._begun[task_id] = state
            if bolt.once:
                record.once = OnceStep(bolt, state, record)
            yield
        finally:
            del bolt.state, bolt.key_fields

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
        if any(state.committed_digest not in (None, digest) for state in begun):
            return None
        return [effect for state in begun for effect in state.writing(digest)]


def _keys(bolt: StatefulBolt, record: Record) -> Iterator[Key]:
    by_default = type(bolt).state_keys is StatefulBolt.state_keys
    for origin, together in groupby(record.fresh, attrgetter("origin")):
        tuples = list(together)
        if tuples[0].is_tick:
            continue
        fields = bolt.key_fields.get((origin.component, origin.stream), ())
        if by_default and len(fields) == 1:
            at = origin.positions[fields[0]]
            # A list cannot be a key; the bolt gets the error when it uses the value as one.
            with suppress(TypeError):
                yield from {tup.values[at] for tup in tuples}
            continue
        for tup in tuples:
            try:
                yield from bolt.state_keys(tup)
            except RAISED as error:
                record.report(f"state_keys: {reason_of(error)}")


def _key_fields(topology: Topology, component: str) -> Mapping[tuple[str, str], tuple[str, ...]]:
    return {
        (subscription.component, subscription.stream): subscription.grouping.fields
        for subscription in topology.bolts[component].subscriptions
        if isinstance(subscription.grouping, Fields)
    }
