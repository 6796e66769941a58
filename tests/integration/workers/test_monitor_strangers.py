"""Reach of a stranger without the token while ``tiercel monitor`` listens on every address."""

import asyncio
import json
import re
import socket
import time
import urllib.error
import urllib.request

import aiohttp
import pytest
import socketio
from typer.testing import CliRunner

from tests.support.broker import put, wait_ready
from tests.support.monitors import TOKEN, monitor, pid_of, port_of, rss_mib
from tests.support.ran import ran
from tests.support.strangers import ScriptedPage
from tiercel.workers.cli.app import app

SECRET = b"customer 4711, card 4111 1111 1111 1111"
EVERYWHERE = ("--host", "0.0.0.0", "--allowed-host", "monitor")
EVIL = {"Host": "evil.example:8710", "Origin": "http://evil.example:8710"}


@pytest.fixture
def name(amqp_url, redis_url):
    """A topology that has run, and its queue with one dead letter."""
    with ran(amqp_url, redis_url, "strangers", SECRET) as name:
        yield name


@pytest.fixture
def url(amqp_url, redis_url, tmp_path):
    with monitor(tmp_path, amqp_url, redis_url, options=EVERYWHERE) as url:
        yield url


@pytest.fixture
def logged(tmp_path):
    """Return the lines of the monitor's log that contain a text."""
    return lambda text: [
        line for line in (tmp_path / "monitor.log").read_text().splitlines() if text in line
    ]


def status(url, path="", **headers):
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}{path}", headers=headers)
        ) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_name_that_is_not_ours_is_refused_on_every_address(url):
    for path in ("", "metrics", "favicon.ico", "_nicegui/x"):
        assert status(url, path, Host="evil.example:8710") == 400
    for host in ("localhost", "[::1]:8710", "monitor:8710", f"127.0.0.1:{port_of(url)}"):
        assert status(url, "metrics", Host=host) == 200, "Prometheus too calls it by a name"
    with socket.create_connection(("127.0.0.1", port_of(url))) as plain:
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"200 OK" in plain.recv(200), "a health check needs no name"


def test_a_page_that_is_rebound_to_us_reads_nothing(url, name):
    async def attack():
        page = ScriptedPage(f"{url}?topology={name}", **EVIL)
        assert await page.load() == 400
        honest = ScriptedPage(f"{url}?topology={name}")
        assert await honest.load() == 200
        for headers in (
            EVIL,
            {"Origin": "http://evil.example:8710"},
            {"Origin": "http://localhost:3000"},
            {"Origin": "null"},
        ):
            honest.headers = headers
            with pytest.raises(socketio.exceptions.ConnectionError):
                await honest.connect()
        honest.headers = {"Origin": url.rstrip("/")}
        # It is chance whether the answer can be read before the connection is closed.
        with pytest.raises((socketio.exceptions.ConnectionError, RuntimeError)):
            await honest.connect("polling")
        await honest.connect()
        await honest.close()

    asyncio.run(attack())


def test_bodies_are_shown_to_whoever_has_the_token_and_the_log_says_to_whom(url, name, logged):
    async def look():
        page = ScriptedPage(f"{url}?topology={name}")
        await page.load()
        await page.connect()
        await page.told(name)  # clicks before the first look are lost
        await asyncio.sleep(3)
        await page.press("look")
        await asyncio.sleep(3)
        assert not any("customer" in said for said in page.said)
        await page.give_token(TOKEN)
        await page.told("customer 4711")
        await page.press("requeue all")
        await page.noted("put 1 message back")
        await page.press("deactivate")
        await page.noted("does not run now")
        await page.close()

    asyncio.run(look())
    for done in (
        f"look at the dead letters of {name}: showed 1",
        f"requeue {name}: put 1 message back",
        f"deactivate {name}: ",
    ):
        [line] = logged(done)
        assert line.endswith("; by 127.0.0.1")


def test_the_token_cannot_be_guessed_and_who_tries_is_logged(url, name, logged, amqp_url):
    async def guess(seconds, pages):
        until = time.monotonic() + seconds
        notes = []

        async def one():
            page = ScriptedPage(f"{url}?topology={name}")
            await page.load()
            await page.connect()
            while time.monotonic() < until:
                await page.press("deactivate")
                await asyncio.sleep(0.05)
                await page.give_token("wrong")
                await asyncio.sleep(0.1)
            await page.press("deactivate")
            await asyncio.sleep(0.05)
            await page.give_token(TOKEN)
            await page.noted("too many wrong tokens")
            await page.close()
            notes.extend(page.notes)

        await asyncio.gather(*(one() for _ in range(pages)))
        return notes

    notes = asyncio.run(guess(8, 4))
    wrong = notes.count("wrong token")
    assert 5 <= wrong <= 6, "five, and one more each ten seconds, whichever page they come from"
    assert len(notes) > 50
    assert len(logged("a wrong token was given from 127.0.0.1")) == wrong
    assert 1 <= len(logged("too many wrong tokens")) <= 2
    assert not logged("deactivate ")


def test_what_a_page_reports_is_one_bounded_line_now_and_then(url, logged, tmp_path):
    async def report():
        page = ScriptedPage(url)
        await page.load()
        await page.connect()
        await page.report("\n07:00:01 ERROR   driver  FAKE LINE \x1b]0;OWNED\x07")
        for _ in range(50):
            await page.report("A" * 200_000)
        async with aiohttp.ClientSession() as session:
            began = time.monotonic()
            async with session.get(f"{url}health") as answer:
                assert answer.status in (200, 503)  # 503: the servers are away
            assert time.monotonic() - began < 5
        await asyncio.sleep(1)
        await page.close()

    asyncio.run(report())
    log = (tmp_path / "monitor.log").read_text()
    assert re.search(r"WARNING tiercel  a page at 127\.0\.0\.1 reports '\\n07:00:01 ERROR", log)
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if line.startswith("07:00:01")]
    assert len(logged("reports")) <= 12
    assert max(map(len, log.splitlines())) < 700


@pytest.mark.rest
def test_a_flood_of_pages_does_not_fill_the_memory(url):
    pid = pid_of(url)

    async def ask(session, count):
        async with session.get(url) as answer:
            assert answer.status == 200
            return count

    async def flood(count):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=8)) as session:
            await asyncio.gather(*(ask(session, number) for number in range(count)))

    asyncio.run(flood(150))
    before = rss_mib(pid)
    asyncio.run(flood(250))
    grown = rss_mib(pid) - before
    assert grown < 30, f"{grown:.0f} MiB for 250 pages"

    async def is_still_of_use():
        page = ScriptedPage(url)
        assert await page.load() == 200
        await page.connect()
        await page.close()

    asyncio.run(is_still_of_use())
    for path in ("x", "_nicegui/x", "_nicegui/0.0/static/x"):
        assert status(url, path) == 404, "and what is not there is no page"


@pytest.mark.rest
def test_pages_that_are_open_stay_when_too_many_are_asked_for(url):
    async def crowd():
        pages = [ScriptedPage(url, f"127.0.0.{2 + number % 2}") for number in range(100)]
        for page in pages:
            assert await page.load() == 200
            await page.connect()
        assert await ScriptedPage(url).load() == 503
        assert status(url, "metrics") == 200
        assert all(page.connected for page in pages)
        for page in pages:
            await page.close()

    asyncio.run(crowd())


def test_one_address_has_sixty_open_pages_at_most_and_others_still_get_theirs(url):
    async def crowd():
        pages = [ScriptedPage(url) for _ in range(61)]
        for page in pages:
            assert await page.load() == 200
        for page in pages[:-1]:
            await page.connect()
        with pytest.raises(socketio.exceptions.ConnectionError):
            await pages[-1].connect()
        other = ScriptedPage(url, "127.0.0.2")
        assert await other.load() == 200
        await other.connect()
        await asyncio.gather(*(page.close() for page in (other, *pages)))

    asyncio.run(crowd())


def test_every_answer_keeps_foreign_scripts_out_and_the_page_out_of_frames(url):
    nonces = set()
    for path in ("", "", "metrics", "health", "favicon.ico", "x"):
        try:
            answer = urllib.request.urlopen(f"{url}{path}")
        except urllib.error.HTTPError as error:
            answer = error
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        if not path:
            [nonce] = re.findall(r"'nonce-([^']+)'", policy)
            text = answer.read().decode()
            assert text.count("<script") == text.count(f'<script nonce="{nonce}"') > 5
            assert "'unsafe-inline'" not in re.search(r"script-src[^;]*", policy)[0]
            nonces.add(nonce)
        answer.close()
    assert len(nonces) == 2, "each answer has its own"
    for destination in ("image", "iframe", "script"):
        assert status(url, "", **{"Sec-Fetch-Dest": destination}) == 403
    assert status(url, "", **{"Sec-Fetch-Dest": "document"}) == 200


def test_a_password_that_a_reason_quotes_is_on_no_page_and_in_no_command(url, name, amqp_url):
    reason = "OperationalError: cannot reach postgresql://shop:S3CRET@db/shop (bolt.py:7)"
    put(amqp_url, f"{name}.dead", b"", headers={"x-tiercel-reason": reason})
    wait_ready(amqp_url, f"{name}.dead", 2)

    async def look():
        page = ScriptedPage(f"{url}?topology={name}")
        await page.load()
        await page.connect()
        await page.told("postgresql://shop:***@db/shop")
        await page.close()
        return page.said

    said = asyncio.run(look())
    for command in (
        ("dead-letters", "show", name),
        ("peek", f"{name}.dead"),
        ("peek", f"{name}.dead", "--json"),
    ):
        result = CliRunner().invoke(
            app, [*command, "--amqp", amqp_url], env={"COLUMNS": "300"}, catch_exceptions=False
        )
        assert "postgresql://shop:***@db/shop" in result.output
        said.append(result.output)
    assert not any("S3CRET" in each for each in said)


def test_actions_are_events_in_a_log_of_json(name, amqp_url, redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv("TIERCEL_LOG", "json")

    async def requeue(url):
        page = ScriptedPage(f"{url}?topology={name}")
        await page.load()
        await page.connect()
        await page.told(name)  # clicks before the first look are lost
        await asyncio.sleep(3)
        await page.press("requeue all")
        await asyncio.sleep(0.3)
        await page.give_token(TOKEN)
        await page.noted("put 1 message back")
        await page.close()

    with monitor(tmp_path, amqp_url, redis_url) as url:
        asyncio.run(requeue(url))
    wait_ready(amqp_url, name, 1)
    entries = [json.loads(line) for line in (tmp_path / "monitor.log").read_text().splitlines()]
    action, look = (entry for entry in entries if entry["event"] == "action")
    assert look["action"] == "look at", "it looks again at what is left"
    assert (action["action"], action["target"], action["origin"]) == ("requeue", name, "127.0.0.1")
    assert action["outcome"] == "put 1 message back"
