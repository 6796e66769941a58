"""Where emissions are recorded: one list a (stream, target task), turned into chunks when the task ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from queues.schema import Schema
from spark_jobs.errors import BadValuesError, UnknownStreamError
from spark_jobs.fold import Anchors
from spark_jobs.grouping import Choose
from spark_jobs.topology import Topology


class Outgoing:
    """What was emitted to one task on one stream."""

    __slots__ = ("anchor_counts", "positions", "rows", "schema", "stream", "target", "values")

    def __init__(self, stream: str, schema: Schema, target: int) -> None:
        self.stream, self.schema, self.target = stream, schema, target
        self.clear()

    def clear(self) -> None:
        self.values: list[Sequence[Any]] = []
        self.rows: list[int] = []
        self.positions: list[int] = []
        self.anchor_counts: list[int] = []
        """Left empty by those who anchor every emission to exactly one tuple."""

    def anchors(self) -> Anchors:
        """The anchors of all emissions."""
        single = np.ones(len(self.values), np.int64)
        return Anchors(
            counts=np.array(self.anchor_counts, np.int64) if self.anchor_counts else single,
            rows=np.array(self.rows, np.int64),
            positions=np.array(self.positions, np.uint64),
        )


class Outlet:
    """One stream of a component: its fields, and who receives what."""

    __slots__ = ("schema", "subscribers", "width")

    def __init__(self, schema: Schema, subscribers: list[tuple[Choose, dict[int, Outgoing]]]) -> None:
        self.schema, self.subscribers, self.width = schema, subscribers, len(schema.fields)


class Outputs:
    """All streams of one task."""

    def __init__(self, topology: Topology, component: str) -> None:
        self._component = component
        self.outlets: dict[str, Outlet] = {}
        self.outgoing: list[Outgoing] = []
        for stream, schema in topology.spec(component).streams.items():
            subscribers = []
            for bolt, subscription in topology.subscribers(component, stream):
                tasks = topology.task_ids(bolt)
                made = {task: Outgoing(stream, schema, task) for task in tasks}
                self.outgoing += made.values()
                subscribers.append((subscription.grouping.chooser(schema, tasks), made))
            self.outlets[stream] = Outlet(schema, subscribers)

    def outlet(self, stream: str, values: Sequence[Any]) -> Outlet:
        """The outlet of a stream for these values; raises UnknownStreamError, BadValuesError."""
        outlet = self.outlets.get(stream)
        if outlet is None:
            known = ", ".join(self.outlets) or "none: set output_fields"
            raise UnknownStreamError(f"{self._component!r} emits on stream {stream!r}; its streams are {known}")
        if isinstance(values, (str, bytes)) or len(values) != outlet.width:
            raise BadValuesError(
                f"{self._component!r} emits {values!r:.80} on stream {stream!r}; give a list with one value for each of"
                f" ({outlet.schema})"
            )
        return outlet

    def clear(self) -> None:
        """Forget what was emitted."""
        for outgoing in self.outgoing:
            outgoing.clear()
