"""The bolt with a state that outlives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.state.key_value import KeyValueState


class StatefulBolt(BasicBolt):
    """A ``BasicBolt`` with a map in Redis, ``self.state``: counts, latest values, what
    was seen before.

    Guarantee: what ``execute`` and ``flush`` write leaves in bulk after ``flush`` and before any
    ack of the step, and counts once however often the step is repeated. The writes of a tuple whose
    ``execute`` raises are forgotten; if ``flush`` raises, all of the step are. A *message* that is
    delivered again, because something else in its tree failed, is a new tuple and counts again: at
    least once, as Storm's, unless ``once`` is set.

    With ``once = True`` a tuple that has a key (``tup.key``, see ``QueueSpout(identity=…)``) is
    applied to the state once, however often its message is delivered: ``execute`` is not called for
    it again, and the bolts that follow get its first emissions. Applied tuples are remembered, in
    the state's commits, for ``once_retention`` at least (a day), while the topology runs. It takes
    52 bytes per tuple, and the bytes beyond twelve of what the tuple emitted. This is about the
    state and emissions, not about attributes and calls to other services. A tuple without a
    key changes the state each time, and is counted.

    The state belongs to the component and not to its tasks: changed parallelism finds it again. It
    is kept from run to run, until an operator deletes it. Subscribe with a fields grouping on the
    key, so that one task has it; see ``KeyValueState``.
    """

    once: bool = False
    once_retention: timedelta = timedelta(days=1)
    # Set for each step, and gone after it; use it in ``execute`` and ``flush``.
    state: KeyValueState = KeyValueState()
    # Set by the framework: the fields that each (component, stream) is grouped by.
    key_fields: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({})

    def state_keys(self, tup: Tuple) -> Iterable[Any]:
        """The keys that ``execute`` will use for this tuple, read in bulk beforehand.

        Others are read one by one when used.

        By default what the tuple was grouped by: the value of the one field, or the tuple of the
        values of several. Not called for ticks.
        """
        fields = self.key_fields.get((tup.source_component, tup.source_stream), ())
        if not fields:
            return ()
        return (tup[fields[0]] if len(fields) == 1 else tuple([tup[field] for field in fields]),)
