"""The bolt whose state outlives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.state.key_value import KeyValueState


class StatefulBolt(BasicBolt):
    """A ``BasicBolt`` with a map in Redis, ``self.state``: counts, latest values, keys seen
    before.

    Guarantee: the writes of ``execute`` and ``flush`` are sent in bulk after ``flush`` and before
    any ack of the step, and take effect once however often the step is repeated. If ``execute``
    raises, its tuple's writes are dropped; if ``flush`` raises, all writes of the step are. A
    *message* that is delivered again, because another part of its tree failed, is a new tuple and
    is applied again: at least once, as in Storm, unless ``once`` is set.

    With ``once = True`` a tuple that has a key (``tup.key``, see ``QueueSpout(identity=…)``) is
    applied to the state once, however often its message is delivered: ``execute`` is not called for
    it again, and downstream bolts receive its first emissions, which may be older than others that
    they have received since (docs/exactly-once.md). Applied tuples are remembered, in
    the state's commits, for at least ``once_retention`` (a day) of the topology's running time.
    Each takes 54 bytes, plus the tuple's emissions beyond their first twelve bytes. This covers the
    state and emissions, not attributes or calls to other services. A tuple without a key changes
    the state each time, and is reported as an error.

    The state belongs to the component, not to its tasks, and so survives a change of parallelism.
    It is kept from run to run, until an operator deletes it. Subscribe with a fields grouping on
    the key, so that one task has all tuples of a key; see ``KeyValueState``.
    """

    once: bool = False
    once_retention: timedelta = timedelta(days=1)
    # Set for each step; use it only in ``execute`` and ``flush``.
    state: KeyValueState = KeyValueState()
    # Set by tiercel: the fields that each (component, stream) is grouped by.
    key_fields: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({})

    def state_keys(self, tup: Tuple) -> Iterable[Any]:
        """The keys that ``execute`` will use for this tuple, read in bulk beforehand.

        Other keys are read one by one when they are used. By default the key that the tuple was
        grouped by: the value of the field, or a tuple of the values of several fields. Not called
        for ticks.
        """
        fields = self.key_fields.get((tup.source_component, tup.source_stream), ())
        if not fields:
            return ()
        return (tup[fields[0]] if len(fields) == 1 else tuple([tup[field] for field in fields]),)
