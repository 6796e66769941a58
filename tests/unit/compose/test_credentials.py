"""The passwords of a stack."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from tiercel.compose.credentials import draw_credentials, main
from tiercel.workers.config import Settings


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    assert draw_credentials(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.glob("*/*")}


def settings_in(folder: Path) -> Settings:
    names = ("amqp", "redis", "management", "token")
    return Settings.load(**{name: (folder / f"tiercel_{name}").read_text() for name in names})


def password_in(url: str | None) -> str:
    found = re.search(r":([^:@/]+)@", url or "")
    assert found
    return found[1]


def test_they_are_drawn_once_and_then_stay(drawn: Path):
    before = contents(drawn)
    assert not draw_credentials(drawn)
    assert contents(drawn) == before


def test_two_stacks_have_none_in_common(tmp_path: Path):
    draw_credentials(tmp_path / "one")
    draw_credentials(tmp_path / "two")
    one = contents(tmp_path / "one")
    two = contents(tmp_path / "two")
    drawn_by_nobody = {"rabbitmq/rabbitmq.conf"}
    for name, text in one.items():
        assert name.endswith("/complete") or name in drawn_by_nobody or text != two[name], name


@pytest.mark.parametrize(
    "role", ["rabbitmq", "redis", "spark", "driver", "spout", "monitor", "grafana"]
)
def test_what_was_drawn_halfway_is_drawn_again_as_a_whole(drawn: Path, role: str):
    (drawn / role / "complete").unlink()
    before = contents(drawn)
    assert draw_credentials(drawn)
    after = contents(drawn)
    assert not [
        name
        for name in before
        if name.endswith(("_redis", "_password", "_cookie")) and before[name] == after[name]
    ]


def test_the_settings_are_read_from_the_folder_and_the_environment_goes_before_it(
    drawn: Path, monkeypatch
):
    folder = drawn / "monitor"
    monkeypatch.setenv("TIERCEL_SECRETS", str(folder))
    settings = Settings.load()
    assert settings.amqp == (folder / "tiercel_amqp").read_text()
    assert settings.redis == (folder / "tiercel_redis").read_text()
    assert settings.token == (folder / "tiercel_token").read_text()
    monkeypatch.setenv("TIERCEL_REDIS", "redis://elsewhere")
    assert Settings.load().redis == "redis://elsewhere"


def test_each_role_has_what_it_needs_and_no_more(drawn: Path):
    found = {
        role.name: {path.name for path in role.iterdir()} - {"complete"} for role in drawn.iterdir()
    }
    assert found == {
        "rabbitmq": {"rabbitmq.conf", "definitions.json", "erlang_cookie"},
        "redis": {"redis.conf"},
        "spark": {"spark.conf"},
        "driver": {"tiercel_amqp", "tiercel_redis", "spark.conf"},
        "spout": {"tiercel_amqp", "tiercel_redis"},
        "monitor": {"tiercel_amqp", "tiercel_redis", "tiercel_management", "tiercel_token"},
        "grafana": {"grafana_password"},
    }


def test_servers_and_addresses_agree(drawn: Path):
    settings = settings_in(drawn / "monitor")
    users = {
        user["name"]: user
        for user in json.loads((drawn / "rabbitmq/definitions.json").read_text())["users"]
    }
    for url in (settings.amqp, settings.management):
        user = users[(url or "").partition("://")[2].partition(":")[0]]
        raw = base64.b64decode(user["password_hash"])
        assert raw[4:] == hashlib.sha256(raw[:4] + password_in(url).encode()).digest()
    assert (drawn / "redis/redis.conf").read_text().split()[1] == password_in(settings.redis)
    for role in ("driver", "spout"):
        assert (drawn / role / "tiercel_amqp").read_text() == settings.amqp
        assert (drawn / role / "tiercel_redis").read_text() == settings.redis
    assert (drawn / "driver/spark.conf").read_text() == (drawn / "spark/spark.conf").read_text()


def test_the_monitor_asks_the_broker_as_a_user_who_may_only_look(drawn: Path):
    definitions = json.loads((drawn / "rabbitmq/definitions.json").read_text())
    assert {user["name"]: user["tags"] for user in definitions["users"]} == {
        "tiercel": "",
        "tiercel-monitor": "monitoring",
    }
    [watcher] = [each for each in definitions["permissions"] if each["user"] == "tiercel-monitor"]
    assert (watcher["configure"], watcher["write"], watcher["read"]) == ("", "", "")
    assert "//tiercel-monitor:" in (settings_in(drawn / "monitor").management or "")


@pytest.mark.parametrize("arguments", [[], ["one", "two"], ["/proc/nowhere"]])
def test_a_wrong_call_is_one_line_and_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
