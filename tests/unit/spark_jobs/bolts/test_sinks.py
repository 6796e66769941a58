"""Snapshots of sinks: everything that changes between two steps is stored in Redis."""

from __future__ import annotations

from tiercel import DatabaseSink, QueueSink, field
from tiercel.spark_jobs.running.copy import pack


def test_clients_queues_that_come_and_go_make_it_no_larger() -> None:
    sink = QueueSink(field("reply_to"), declare=False)
    before = pack(sink, set()).content
    for number in range(1_000):
        assert sink._look_after({("", f"amq.gen-{number}")}, lambda _: None) == {}
    assert pack(sink, set()).content == before
    assert not sink._known


def test_addresses_with_their_passwords_are_no_part_of_it() -> None:
    publishing = QueueSink("orders")
    publishing._amqp_url = "amqp://user:secret@host/"
    writing = DatabaseSink("postgresql://user:secret@host/shop", "bookings")
    for sink in (publishing, writing):
        assert b"secret" not in pack(sink, set()).content
