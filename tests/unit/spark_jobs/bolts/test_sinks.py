"""Snapshots of sinks: everything that changes between two steps is stored in Redis."""

from __future__ import annotations

from tiercel import DatabaseSink, QueueSink, field
from tiercel.spark_jobs.bolts import queue_sink
from tiercel.spark_jobs.running.copy import pack


def test_clients_queues_that_come_and_go_make_it_no_larger() -> None:
    sink = QueueSink(field("reply_to"), declare=False)
    before = pack(sink, set()).content
    for number in range(1_000):
        assert sink._look_after({("", f"amq.gen-{number}")}, lambda _: None) == {}
    assert pack(sink, set()).content == before
    assert not sink._known


def test_of_many_queues_it_knows_those_that_it_used_last(monkeypatch) -> None:
    monkeypatch.setattr(queue_sink, "KNOWN", 100)
    asked = []
    monkeypatch.setattr(queue_sink, "declare_queue", lambda _, queue, __: asked.append(queue.name))
    sink = QueueSink(field("reply_to"))

    def use(*names: str) -> list[str]:
        asked.clear()
        sink._look_after({("", name) for name in names}, lambda _: None)
        return asked

    for number in range(1_000):
        assert use("always", f"client-{number}")[-1] == f"client-{number}"
    assert len(sink._known) == 100
    assert use("always", "client-950", "client-900") == ["client-900"]
    assert use(*(f"many-{number}" for number in range(150))) != []
    assert len(sink._known) == 100


def test_addresses_with_their_passwords_are_no_part_of_it() -> None:
    publishing = QueueSink("orders")
    publishing._amqp_url = "amqp://user:secret@host/"
    writing = DatabaseSink("postgresql://user:secret@host/shop", "bookings")
    for sink in (publishing, writing):
        assert b"secret" not in pack(sink, set()).content
