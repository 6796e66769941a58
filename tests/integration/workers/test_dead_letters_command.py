"""``tiercel dead-letters``: which letters it shows, requeues and deletes, and its questions."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from tests.support.broker import delete, put, take_all, unique, wait_ready
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.publishing import dead_letters
from tiercel.workers.cli.app import app
from tiercel.workers.errors import UsageError

# Body, reason and time of death, in the order of the queue.
LETTERS = [
    (b"third", "pricer answers 500", "2026-01-03T00:00:00+00:00"),
    (b"first", "body is not JSON", "2026-01-01T00:00:00+00:00"),
    (b"fourth", "Pricer answers 503", "2026-01-04T00:00:00+00:00"),
    (b"unknown", "pricer is away", None),
    (b"second", "body is not JSON", "2026-01-02T00:00:00.500000+00:00"),
]
SORTED = [b"first", b"second", b"third", b"fourth", b"unknown"]


@pytest.fixture
def queue(amqp_url):
    work = WorkQueue(name=unique())
    declare_queue(amqp_url, work)
    for body, reason, died in LETTERS:
        headers = {"x-tiercel-reason": reason} | ({"x-tiercel-died": died} if died else {})
        put(amqp_url, work.dead, body, headers=headers)
    wait_ready(amqp_url, work.dead, len(LETTERS))
    yield work
    for name in (work.name, work.dead):
        delete(amqp_url, name)


@pytest.fixture
def tiercel(amqp_url):
    """Run the command; return its exit code and output."""

    def run(*arguments, answer=None):
        result = CliRunner().invoke(
            app,
            ["dead-letters", *arguments, "--amqp", amqp_url],
            env={"COLUMNS": "200"},
            input=answer,
            catch_exceptions=False,
        )
        return result.exit_code, result.output

    return run


def bodies(amqp_url, name):
    return {body for body, _ in take_all(amqp_url, name)}


def left(amqp_url, queue, number):
    """Return the bodies of the dead letters, in order, once there are this many."""
    wait_ready(amqp_url, queue.dead, number)
    return [letter.body for letter in dead_letters.show(amqp_url, queue.name)]


def test_the_oldest_deaths_come_first_whatever_the_order_of_the_queue(amqp_url, queue, tiercel):
    assert left(amqp_url, queue, 5) == SORTED
    for limit in (1, 2, 4):
        found = dead_letters.show(amqp_url, queue.name, limit)
        assert [letter.body for letter in found] == SORTED[:limit]
        assert dead_letters.ids_of(amqp_url, queue.name, limit) == [each.id for each in found]
    _, said = tiercel("show", queue.name)
    shown = [said.index(body.decode()) for body in SORTED]
    assert shown == sorted(shown)
    wait_ready(amqp_url, queue.dead, 5)


def test_beyond_its_bounds_it_sorts_what_the_queue_has_first(amqp_url, queue, monkeypatch):
    monkeypatch.setattr(dead_letters, "SORTED", 3)
    found = dead_letters.show(amqp_url, queue.name, 2)
    assert [letter.body for letter in found] == [b"first", b"third"]
    monkeypatch.setattr(dead_letters, "SORTED", 1_000)
    found = dead_letters.ids_of(amqp_url, queue.name, 2, reason="not json")
    assert len(found) == 2
    wait_ready(amqp_url, queue.dead, 5)


def test_letters_are_chosen_by_a_part_of_their_reason(amqp_url, queue, tiercel):
    found = dead_letters.show(amqp_url, queue.name, reason="PRICER answers")
    assert [letter.body for letter in found] == [b"third", b"fourth"]
    code, said = tiercel("show", queue.name, "--reason", "pricer", "--json")
    assert code == 0
    third, _, unknown = map(json.loads, said.splitlines())
    assert (unknown["body"], unknown["died"]) == ("unknown", None)
    assert third == {
        "id": found[0].id,
        "queue": queue.name,
        "died": "2026-01-03T00:00:00+00:00",
        "reason": "pricer answers 500",
        "headers": third["headers"],
        "bytes": 5,
        "body": "third",
    }
    assert third["headers"]["x-tiercel-reason"] == "pricer answers 500"
    assert datetime.fromisoformat(third["died"]) == datetime(2026, 1, 3, tzinfo=UTC)
    assert "no dead letter" in tiercel("show", queue.name, "--reason", "timeout")[1]
    assert left(amqp_url, queue, 5) == SORTED


def test_a_body_that_is_no_text_is_shown_in_base64(amqp_url, queue, tiercel):
    put(amqp_url, queue.dead, b"\xff\x00", headers={"x-tiercel-reason": "odd"})
    _, said = tiercel("show", queue.name, "--reason", "odd", "--json")
    assert json.loads(said)["body_base64"] == "/wA="


def test_requeue_by_reason_asks_and_takes_those_alone(amqp_url, queue, tiercel):
    code, said = tiercel("requeue", queue.name, "--reason", "pricer answers", answer="n\n")
    assert (code, bodies(amqp_url, queue.name)) == (1, set())
    question = f"Requeue 2 dead letters to '{queue.name}'? Their delivery counts restart."
    assert question in said
    wait_ready(amqp_url, queue.dead, 5)
    code, said = tiercel("requeue", queue.name, "--reason", "pricer answers", answer="y\n")
    assert code == 0
    assert f"put 2 messages back into {queue.name}" in said
    assert left(amqp_url, queue, 3) == [b"first", b"second", b"unknown"]
    assert bodies(amqp_url, queue.name) == {b"third", b"fourth"}


def test_requeue_with_a_limit_takes_the_oldest(amqp_url, queue, tiercel):
    code, said = tiercel(
        "requeue", queue.name, "--reason", "not JSON", "--limit", "1", answer="y\n"
    )
    assert code == 0
    assert "Requeue 1 dead letter to" in said
    assert "Its delivery count restarts." in said
    assert tiercel("requeue", queue.name, "--limit", "2", "--yes")[0] == 0
    assert left(amqp_url, queue, 2) == [b"fourth", b"unknown"]
    assert bodies(amqp_url, queue.name) == {b"first", b"second", b"third"}


def test_delete_asks_and_deletes_the_chosen_for_good(amqp_url, queue, tiercel):
    first = dead_letters.show(amqp_url, queue.name, 1)[0].id
    wait_ready(amqp_url, queue.dead, 5)
    assert tiercel("delete", queue.name, "--id", first, answer="n\n")[0] == 1
    wait_ready(amqp_url, queue.dead, 5)
    code, said = tiercel("delete", queue.name, "--id", first, answer="y\n")
    assert code == 0
    assert f"Delete 1 dead letter of {queue.name} for good?" in said
    assert f"deleted 1 dead letter of {queue.name}" in said
    assert left(amqp_url, queue, 4) == [b"second", b"third", b"fourth", b"unknown"]
    assert tiercel("delete", queue.name, "--reason", "pricer", "--yes")[0] == 0
    assert left(amqp_url, queue, 1) == [b"second"]
    assert "deleted 1 dead letter" in tiercel("delete", queue.name, "--all", "--yes")[1]
    assert bodies(amqp_url, queue.dead) == set()
    assert bodies(amqp_url, queue.name) == set()


def test_an_id_that_is_gone_is_named_and_the_others_are_deleted(amqp_url, queue, tiercel):
    first = dead_letters.show(amqp_url, queue.name, 1)[0].id
    wait_ready(amqp_url, queue.dead, 5)
    with pytest.raises(UsageError, match="nonsense is not among"):
        tiercel("delete", queue.name, "--id", first, "--id", "nonsense", "--yes")
    assert left(amqp_url, queue, 4) == [b"second", b"third", b"fourth", b"unknown"]


@pytest.mark.parametrize("command", ["requeue", "delete"])
def test_an_empty_choice_is_refused_and_never_means_all(amqp_url, queue, tiercel, command):
    for arguments, line in [
        ((), "which dead letters of .*--id.*--reason.*--limit.*--all"),
        (("--yes",), "which dead letters of"),
        (("--reason", ""), "--reason needs a text"),
        (("--all", "--reason", "a"), "--all means every dead letter"),
        (("--id", "a", "--all"), "--id names the letters"),
    ]:
        with pytest.raises(UsageError, match=line):
            tiercel(command, queue.name, *arguments)
    code, said = tiercel(command, queue.name, "--reason", "no such reason", "--yes")
    assert code == 0
    assert f"no dead letter of {queue.name} has 'no such reason' in its reason" in said
    assert dead_letters.requeue_chosen(amqp_url, queue.name, []) == []
    assert dead_letters.delete_chosen(amqp_url, queue.name, []) == []
    assert left(amqp_url, queue, 5) == SORTED


@pytest.mark.parametrize("command", ["requeue", "delete"])
def test_all_of_them_need_a_word_and_an_answer(amqp_url, queue, tiercel, command):
    code, said = tiercel(command, queue.name, "--all")
    assert code == 1, "nobody can answer"
    assert "all dead letters" in said
    wait_ready(amqp_url, queue.dead, 5)
    assert tiercel(command, queue.name, "--all", answer="y\n")[0] == 0
    assert bodies(amqp_url, queue.dead) == set()


def test_a_word_that_is_no_command_names_the_one_that_is_meant(tiercel):
    for word, meant in [("list", "show"), ("ls", "show"), ("retry", "requeue")]:
        with pytest.raises(UsageError, match=f"did you mean tiercel dead-letters {meant}"):
            tiercel(word, "orders")
