"""Order of the calls of ``bench.inbox`` and ``bench.steps``, on twins in memory; not their cost."""

import itertools

import pytest

from bench import inbox, steps
from tiercel.acker.inbox.contract import Bounds
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.memory import MemoryLedger
from tiercel.spark_jobs.state.memory import MemoryStateStore

URL = "redis://127.0.0.1:1/0"


class FakeClient:
    """Server that spends a millisecond of CPU per query of its usage."""

    looks = itertools.count(1)

    def info(self, _section):
        return {
            "used_cpu_sys_main_thread": next(self.looks) / 1000,
            "used_cpu_user_main_thread": 0.0,
        }

    def ping(self):
        return True

    def flushdb(self):
        pass

    def keys(self, _pattern):
        return [b"meta", b"entries"]

    def memory_usage(self, _name):
        return 100

    def close(self):
        pass


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch):
    for module in (inbox, steps):
        monkeypatch.setattr(module, "connect", lambda _url: FakeClient())
    unbounded = Bounds(tuples=10**9, bytes=10**9)
    monkeypatch.setattr(
        inbox, "RedisInboxes", lambda _servers, _topology, bounds: MemoryInboxes(bounds)
    )
    monkeypatch.setattr(steps, "open_inboxes", lambda _spec: MemoryInboxes(unbounded))
    monkeypatch.setattr(steps, "open_ledger", MemoryLedger)
    monkeypatch.setattr(
        steps, "RedisStateStore", lambda _spec, run_number: MemoryStateStore(run_number)
    )


def test_every_call_of_a_step_has_a_price():
    found = inbox.calls(URL, 40)
    assert list(found) == [
        *(
            "ping",
            "take nothing",
            "append 2 KB",
            "take 2 KB",
            "seal and finish",
            "append 64 KB",
            "commit",
        ),
    ]
    assert all({"p50_ms", "p99_ms", "client_us", "server_us"} == set(row) for row in found.values())


def test_a_commit_takes_one_chunk_and_leaves_one():
    bench = inbox.InboxBench(URL)
    bench.append(b"x")
    for _ in range(5):
        bench.commit(b"x")
    figures = bench.inboxes.figures([inbox._TASK, inbox._OTHER])
    assert (figures[inbox._TASK].tuples, figures[inbox._OTHER].tuples) == (1, 5)
    bench.close()


def test_each_tuple_is_a_step_of_either_bolt_and_ends_its_tree():
    stage = steps.Stage(steps.chain(), URL)
    took = [stage.one_tuple(FakeClient()) for _ in range(3)]
    assert all(len(each) == 2 for each in took)
    assert stage._ledger.pending() == 0
    stage.close()


def test_what_the_server_takes_to_be_asked_is_not_counted():
    found = steps.steps(URL, 4)
    assert list(found) == ["pass", "drop", "count"]
    assert all(
        row["client_us"] > 0 and row["server_us"] == pytest.approx(0, abs=1e-6)
        for row in found.values()
    )


def test_an_idle_inbox_costs_what_waiting_costs():
    found = inbox.idle(URL, 0.05)
    assert found["inbox_bytes"] == 200
    assert found["cpu_ms_per_minute"] >= 0
