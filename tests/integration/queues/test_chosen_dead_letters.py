"""Requeueing chosen dead letters: the others stay, and nothing is lost whenever the requeueing
process dies.
"""

import signal
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.broker import delete, plain_channel, put, take_all, unique, wait_ready
from tests.support.waiting import wait_until
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.errors import QueueMissingError
from tiercel.queues.publishing import dead_letters
from tiercel.queues.retry import NO_WAIT
from tiercel.workers.cli.app import app
from tiercel.workers.errors import UsageError

DIES = """
import os, signal, sys
from pika.adapters.blocking_connection import BlockingChannel
from tiercel.queues.publishing import dead_letters

url, queue, call, *chosen = sys.argv[1:]
calls = [0]
real = getattr(BlockingChannel, call)

def dies_at_the_second(*arguments, **options):
    calls[0] += 1
    if calls[0] == (1 if call == "close" else 2):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

setattr(BlockingChannel, call, dies_at_the_second)
dead_letters.requeue_chosen(url, queue, chosen)
"""


@pytest.fixture
def queue(amqp_url):
    work = WorkQueue(name=unique(), retry=NO_WAIT, delivery_limit=1)
    declare_queue(amqp_url, work)
    yield work
    for name in (work.name, work.dead):
        delete(amqp_url, name)


def ids(amqp_url, queue):
    """Return the ids of the dead letters, the oldest first."""
    return [letter.id for letter in dead_letters.show(amqp_url, queue.name)]


def bodies(amqp_url, name):
    return [body for body, _ in take_all(amqp_url, name)]


def test_only_the_chosen_go_and_the_others_stay_before_those_that_nobody_looked_at(
    amqp_url, queue, monkeypatch
):
    monkeypatch.setattr(dead_letters, "SORTED", 1)
    put(amqp_url, queue.dead, b"a", b"b", b"c", b"d", b"new", b"newer")
    _, b, _, d = (letter.id for letter in dead_letters.show(amqp_url, queue.name, limit=4))
    assert dead_letters.requeue_chosen(amqp_url, queue.name, [d, b]) == [b, d]
    wait_ready(amqp_url, queue.dead, 4)
    assert bodies(amqp_url, queue.name) == [b"b", b"d"]
    assert bodies(amqp_url, queue.dead) == [b"a", b"c", b"new", b"newer"]


def test_those_that_stay_keep_their_order_however_many_they_are(amqp_url, queue):
    letters = [b"%d" % number for number in range(30)]
    put(amqp_url, queue.dead, *letters)
    wait_ready(amqp_url, queue.dead, 30)
    chosen = [ids(amqp_url, queue)[number] for number in (3, 17)]
    assert dead_letters.requeue_chosen(amqp_url, queue.name, chosen) == chosen
    wait_ready(amqp_url, queue.dead, 28)
    assert bodies(amqp_url, queue.name) == [b"3", b"17"]
    assert bodies(amqp_url, queue.dead) == [
        letter for letter in letters if letter not in {b"3", b"17"}
    ]


def test_of_equal_letters_as_many_go_as_were_chosen(amqp_url, queue):
    put(amqp_url, queue.dead, b"same", b"same", b"other", b"same")
    same = ids(amqp_url, queue)[0]
    assert ids(amqp_url, queue) == [same, same, ids(amqp_url, queue)[2], same]
    assert dead_letters.requeue_chosen(amqp_url, queue.name, [same, same]) == [same, same]
    wait_ready(amqp_url, queue.dead, 2)
    assert Counter(bodies(amqp_url, queue.dead)) == Counter({b"same": 1, b"other": 1})


def test_the_same_body_with_another_reason_is_another_letter(amqp_url, queue):
    put(amqp_url, queue.dead, b"same", headers={"x-tiercel-reason": "one"})
    put(amqp_url, queue.dead, b"same", headers={"x-tiercel-reason": "two"})
    put(amqp_url, queue.dead, b"same", headers={"x-tiercel-reason": "one"}, message_id="7")
    one, two, _ = found = ids(amqp_url, queue)
    assert len(set(found)) == 3
    assert dead_letters.requeue_chosen(amqp_url, queue.name, [two]) == [two]
    wait_ready(amqp_url, queue.dead, 2)
    assert one in ids(amqp_url, queue)


def test_a_letter_has_one_id_however_often_it_is_looked_at(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", headers={"list": [{"deep": 1}], "pi": b"\xff"})
    assert len({tuple(ids(amqp_url, queue)) for _ in range(5)}) == 1


def test_what_is_not_there_any_more_is_passed_over(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b")
    a, b = ids(amqp_url, queue)
    assert dead_letters.requeue_chosen(amqp_url, queue.name, [a]) == [a]
    wait_ready(amqp_url, queue.dead, 1)
    assert dead_letters.requeue_chosen(amqp_url, queue.name, [a, b]) == [b]
    assert dead_letters.requeue_chosen(amqp_url, queue.name, []) == []


def test_a_letter_that_somebody_holds_stays_his(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b")
    a, b = ids(amqp_url, queue)
    wait_ready(amqp_url, queue.dead, 2)
    with plain_channel(amqp_url) as channel:
        assert channel.basic_get(queue.dead)[2] == b"a"
        assert dead_letters.requeue_chosen(amqp_url, queue.name, [a, b]) == [b]
    wait_until(lambda: bodies(amqp_url, queue.dead) == [b"a"])


def test_without_a_queue_to_go_to_all_letters_stay(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b", b"c")
    chosen = ids(amqp_url, queue)[1:]
    delete(amqp_url, queue.name)
    with pytest.raises(QueueMissingError, match=queue.name):
        dead_letters.requeue_chosen(amqp_url, queue.name, chosen)
    wait_ready(amqp_url, queue.dead, 3)
    declare_queue(amqp_url, queue)


def test_the_command_line_reads_and_requeues_by_id(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"first line\nsecond line", b"\x00\x1b[31m")
    _, text, binary = ids(amqp_url, queue)

    def tiercel(*arguments):
        result = CliRunner().invoke(
            app, ["dead-letters", *arguments, "--amqp", amqp_url], env={"COLUMNS": "80"}
        )
        assert result.exit_code == 0, result.output
        return result.output

    assert text in tiercel("show", queue.name)
    assert tiercel("read", queue.name, text) == "first line\nsecond line\n"
    assert "00 1b 5b 33 31 6d" in tiercel("read", queue.name, binary)
    assert "put 2 messages back" in tiercel("requeue", queue.name, "--id", binary, "--id", text)
    assert set(bodies(amqp_url, queue.name)) == {b"first line\nsecond line", b"\x00\x1b[31m"}
    with pytest.raises(UsageError, match=f"{text} is not among"):
        CliRunner().invoke(
            app,
            ["dead-letters", "read", queue.name, text, "--amqp", amqp_url],
            catch_exceptions=False,
        )
    assert "put 1 message back" in tiercel("requeue", queue.name, "--all", "--yes")


def test_an_id_that_there_is_not_ends_the_command_with_a_refusal(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b")
    a, b = ids(amqp_url, queue)

    def requeue(*chosen):
        options = [word for each in chosen for word in ("--id", each)]
        arguments = ["dead-letters", "requeue", queue.name, *options]
        return subprocess.run(
            [sys.executable, "-m", "tiercel", *arguments, "--amqp", amqp_url],
            capture_output=True,
            text=True,
            check=False,
        )

    unknown = requeue("nonsense")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.splitlines()[-1].startswith("tiercel: nonsense is not among the oldest")
    some = requeue(a, "nonsense", a)
    assert (some.returncode, some.stdout) == (2, f"put 1 message back into {queue.name}\n")
    assert f"tiercel: {a}, nonsense is not among" in some.stderr
    wait_ready(amqp_url, queue.dead, 1)
    assert bodies(amqp_url, queue.name) == [b"a"]
    assert ids(amqp_url, queue) == [b]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    letters=st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c", b"\x00\xff", b""]), st.booleans()), max_size=8
    )
)
def test_whatever_is_chosen_each_letter_is_in_one_of_the_queues(amqp_url, queue, letters):
    put(amqp_url, queue.dead, *[body for body, _ in letters])
    wait_ready(amqp_url, queue.dead, len(letters))
    chosen = [
        letter for letter, (_, take) in zip(ids(amqp_url, queue), letters, strict=True) if take
    ]
    wait_ready(amqp_url, queue.dead, len(letters))
    moved = dead_letters.requeue_chosen(amqp_url, queue.name, chosen)
    assert Counter(moved) == Counter(chosen)
    wait_ready(amqp_url, queue.dead, len(letters) - len(chosen))
    assert Counter(bodies(amqp_url, queue.name)) == Counter(body for body, take in letters if take)
    assert Counter(bodies(amqp_url, queue.dead)) == Counter(
        body for body, take in letters if not take
    )


@pytest.mark.parametrize(
    ("call", "twice"),
    [("basic_publish", set()), ("basic_ack", {b"d"}), ("close", set())],
    ids=["before it publishes", "between publish and ack", "before it gives the others back"],
)
def test_killed_at_any_moment_it_leaves_a_letter_twice_at_worst(amqp_url, queue, call, twice):
    put(amqp_url, queue.dead, b"a", b"b", b"c", b"d", b"e")
    _, b, _, d, _ = ids(amqp_url, queue)
    wait_ready(amqp_url, queue.dead, 5)
    killed = subprocess.run(
        [sys.executable, "-c", DIES, amqp_url, queue.name, call, b, d], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    gone = {b"b", b"d"} if call == "close" else {b"b"}
    wait_ready(amqp_url, queue.dead, 5 - len(gone))
    assert set(bodies(amqp_url, queue.dead)) == {b"a", b"b", b"c", b"d", b"e"} - gone
    assert set(bodies(amqp_url, queue.name)) == gone | twice
