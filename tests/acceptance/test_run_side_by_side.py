"""Runs of several topologies on one machine: each has its servers, and commands find them."""

import json

import pytest

from tests.support.runs import SHOUT, Desk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)


def test_two_topologies_live_side_by_side_and_one_runs_once(tmp_path):
    desk, other = Desk(tmp_path), Desk(tmp_path)
    desk.write("shout.py", SHOUT)
    desk.write("sing.py", SHOUT.replace("shout", "sing").replace('"lines"', '"songs"'))
    desk.write("text", "one\ntwo\n")
    with desk.run("shout:topology") as shouting:
        refused = desk.tiercel("run", "shout:topology", code=2)
        assert f"shout is already running here (process {shouting.pid})" in refused.stderr
        assert "starting a private" not in refused.stderr

        other._logs.append(tmp_path / "unused")
        with other.run("sing:topology") as singing:
            desk.tiercel("publish", "songs", "text")
            wait_until(lambda: other.log.count("heard ") == 2, 60, "two songs to be heard")
            assert "heard" not in desk.log

            unsure = desk.tiercel("depths", code=2).stderr
            assert f"shout (process {shouting.pid}), sing (process {singing.pid})" in unsure
            chosen = desk.tiercel("depths", "--json", "--run", "sing")
            assert [each["name"] for each in json.loads(chosen.stdout)["queues"]] == ["songs"]
            assert f"of sing (process {singing.pid})" in chosen.stderr

            assert "shout has ended" in desk.tiercel("kill", "shout").stdout
            assert shouting.wait(60) == 0
            assert f"of sing (process {singing.pid})" in desk.tiercel("errors").stderr


def test_no_password_is_said_and_the_note_has_them(tmp_path):
    desk = Desk(tmp_path)
    desk.write("shout.py", SHOUT)
    with desk.run("shout:topology", "--log-level", "debug", until="services_ready"):
        [ready] = desk.events("services_ready")
        [note] = (tmp_path / "runtime").glob("*/run-*.json")
        assert f" {note} " in ready["message"]
        addresses = json.loads(note.read_text())
        for name in ("amqp", "redis", "management"):
            login, _, place = addresses[name].rpartition("@")
            assert place.rstrip("/0").removesuffix("/%2F") in ready["message"]
            assert login.rpartition(":")[2] not in desk.log
