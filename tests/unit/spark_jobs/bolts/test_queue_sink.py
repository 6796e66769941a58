"""What a ``QueueSink`` keeps between two steps."""

from __future__ import annotations

from tiercel import QueueSink, field
from tiercel.spark_jobs.snapshots.packing import pack


def test_clients_queues_that_come_and_go_make_it_no_larger() -> None:
    sink = QueueSink(field("reply_to"), declare=False)
    before = pack(sink, set()).content
    for number in range(1_000):
        assert sink._look_after({("", f"amq.gen-{number}")}) == {}
    assert pack(sink, set()).content == before
    assert not sink._known
