"""``tiercel publish``: files become messages in a queue or an exchange."""

from __future__ import annotations

import json
import os
import threading

import pytest
from typer.testing import CliRunner

from tests.support.broker import plain_channel, take_all, unique
from tests.support.terminal import command
from tiercel import WorkQueue, declare_queue
from tiercel.queues.message.properties import header_texts
from tiercel.workers.cli.app import app


@pytest.fixture
def tiercel(amqp_url, tmp_path, monkeypatch):
    """Run the command; return its output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, text=None):
        result = CliRunner().invoke(
            app,
            ["publish", *arguments, "--amqp", amqp_url],
            env={"COLUMNS": "200"},
            input=text,
        )
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture
def refused(amqp_url, tmp_path, monkeypatch, capsys):
    """Run the command, which fails with one line; return that line."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        ended = command(capsys, "publish", *arguments, "--amqp", amqp_url, COLUMNS="200")
        assert ended.code == 2, ended
        assert "Traceback" not in ended.stderr
        return ended.stderr

    return run


@pytest.fixture
def exchange(amqp_url):
    """A topic exchange, and a queue bound to order.new."""
    name = unique("events")
    declare_queue(amqp_url, WorkQueue(name=name))
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(name, "topic", durable=True)
        channel.queue_bind(name, name, "order.*")
        yield name
        channel.exchange_delete(name)


def taken(amqp_url, queue):
    with plain_channel(amqp_url) as channel:
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            yield message


def test_lines_go_into_a_queue_that_is_made(amqp_url, tiercel, tmp_path):
    queue = unique()
    (tmp_path / "lines").write_text("a\n\nb\r\n")
    assert f"published 2 messages to {queue}" in tiercel(queue, "lines")
    assert f"published 1 message to {queue}" in tiercel(queue, "-", text="c\n")
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"a", b"b", b"c"]


def test_to_an_exchange_with_all_that_a_message_may_have(amqp_url, tiercel, tmp_path, exchange):
    (tmp_path / "a").write_text('{"id": "m-1"}\n{"id": 7}\n')
    (tmp_path / "b").write_text('{"id": "m-3", "more": true}')
    options = ["--exchange", exchange, "--routing-key", "order.new", "--message-id-from", "id"]
    options += ["--header", "tenant=a", "--header", "note=x=y", "--priority", "9"]
    assert f"published 3 messages to {exchange}" in tiercel(*options, "a", "b")
    found = list(taken(amqp_url, exchange))
    assert [method.routing_key for method, _, _ in found] == ["order.new"] * 3
    assert [properties.message_id for _, properties, _ in found] == ["m-1", "7", "m-3"]
    for _, properties, _ in found:
        assert (properties.delivery_mode, properties.priority) == (2, 9)
        assert header_texts(properties.headers) == {"tenant": "a", "note": "x=y"}


def test_without_a_message_id_each_has_one_of_its_own(amqp_url, tiercel, exchange):
    tiercel("--exchange", exchange, "--routing-key", "order.new", "-", text="a\nb\n")
    assert len({properties.message_id for _, properties, _ in taken(amqp_url, exchange)}) == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["q", "f", "--routing-key", "k"], "--routing-key is for --exchange"),
        (["--exchange", "", "f"], "--exchange needs a name"),
        (["q"], "nothing to publish to q: name a file"),
        (["", "-"], "a queue has a name of 1 to 250 bytes, without line breaks, not ''"),
        (["q" * 251, "-"], "without line breaks, not 'qqq"),
        (["q\n", "-"], "without line breaks, not 'q\\n'"),
        (["q", "f", "--header", "a"], "--header 'a' is not NAME=VALUE"),
        (["q", "f", "--header", "=a"], "--header: header '' cannot be the str 'a': a name has"),
        (["q", "f", "--header", "CC=a"], "--header: the header 'CC' is a list of routing keys"),
        (["q", "missing"], "cannot read missing: No such file"),
        (["--exchange", "no-such", "f"], "no exchange 'no-such'"),
        (["q", "f", "f", "--message-id", "a"], "--message-id is the id of one message, and there"),
        (["q", "f", "--message-id", "a", "--message-id-from", "b"], "choose one"),
    ],
)
def test_what_cannot_be_is_one_line(refused, tmp_path, arguments, line):
    (tmp_path / "f").write_text("a\n")
    said = refused(*arguments)
    assert line in said
    assert said.startswith("tiercel: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ("{}", "message 2: the member 'id' of the body is not a text or a whole number"),
        ('{"id": null}', "message 2: the member 'id'"),
        ('{"id": true}', "message 2: the member 'id'"),
        ('{"id": 1.5}', "message 2: the member 'id'"),
        ("[1]", "message 2: the body is not a JSON object"),
        ("{", "message 2: the body is not JSON"),
        (json.dumps({"id": "x" * 1_000_000}), "message 2: message_id has 1,000,000 bytes"),
    ],
)
def test_a_body_without_a_message_id_is_found_before_any_message_goes_out(
    amqp_url, refused, tmp_path, bad, line
):
    queue = unique()
    declare_queue(amqp_url, WorkQueue(name=queue))
    (tmp_path / "good").write_text('{"id": "m-0"}\n')
    (tmp_path / "f").write_text(f'{{"id": "m-1"}}\n{bad}\n{{"id": "m-3"}}\n')
    said = refused(queue, "good", "f", "--message-id-from", "id")
    assert f"f, {line}" in said
    assert said.endswith("; nothing was published\n")
    assert list(taken(amqp_url, queue)) == []


def test_a_byte_order_mark_is_no_part_of_the_first_message(tiercel, amqp_url, tmp_path):
    queue = unique("marked")
    declare_queue(amqp_url, WorkQueue(name=queue))
    (tmp_path / "orders.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n{"id": 2}\r\n')
    tiercel(queue, "orders.jsonl")
    with plain_channel(amqp_url) as channel:
        bodies = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(2)]
    assert bodies == [b'{"id": 1}', b'{"id": 2}']


def test_all_bad_bodies_of_a_file_are_counted(refused, tmp_path):
    (tmp_path / "f").write_text('{"id": "m-1"}\n{}\n[]\n{\n')
    said = refused("q", "f", "--message-id-from", "id")
    assert "f, message 2: the member 'id'" in said
    assert "; 2 other messages of the file cannot be sent either; nothing was published" in said


def test_a_stream_stops_at_a_bad_body_and_says_how_many_are_out(amqp_url, refused, tmp_path):
    queue = unique()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    written = threading.Thread(target=pipe.write_text, args=('{"id": "m-1"}\n{"id": 2}\n{}\n',))
    written.start()
    said = refused(queue, "pipe", "--message-id-from", "id")
    written.join()
    assert "pipe, message 3: the member 'id'" in said
    assert "; 2 messages before it went out: correct it, and publish the rest alone" in said
    assert [properties.message_id for _, properties, _ in taken(amqp_url, queue)] == ["m-1", "2"]


def test_a_body_that_is_no_json_can_have_a_message_id(amqp_url, tiercel, tmp_path):
    queue = unique()
    tiercel(queue, "-", "--message-id", "o-1", text="{no JSON\n")
    (tmp_path / "f").write_bytes(b"two\nlines\n")
    tiercel(queue, "f", "--whole", "--message-id", "o-2")
    found = [(properties.message_id, body) for _, properties, body in taken(amqp_url, queue)]
    assert found == [("o-1", b"{no JSON"), ("o-2", b"two\nlines\n")]


def test_what_an_exchange_leads_to_no_queue_is_refused_with_the_reason(refused, tmp_path, exchange):
    (tmp_path / "f").write_text("a\n")
    said = refused("--exchange", exchange, "--routing-key", "invoice.new", "f")
    assert f"message 1 was refused: exchange '{exchange}' on " in said
    assert "leads to no queue for the routing key 'invoice.new'; bind one" in said
