"""The passwords of a stack."""

from pathlib import Path

import pytest

from compose.credentials import draw_credentials, main
from workers.config import Settings


def test_they_are_drawn_once_and_then_stay(tmp_path: Path):
    assert draw_credentials(tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert not draw_credentials(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_two_stacks_have_none_in_common(tmp_path: Path):
    draw_credentials(tmp_path / "one")
    draw_credentials(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.name == "complete" or path.read_text() != (tmp_path / "two" / path.name).read_text()


def test_what_was_drawn_halfway_is_drawn_again_as_a_whole(tmp_path: Path):
    draw_credentials(tmp_path)
    (tmp_path / "complete").unlink()
    before = (tmp_path / "tiercel_redis").read_text()
    assert draw_credentials(tmp_path)
    assert (tmp_path / "tiercel_redis").read_text() != before


def test_the_settings_are_read_from_the_folder_and_the_environment_goes_before_it(tmp_path: Path, monkeypatch):
    draw_credentials(tmp_path)
    monkeypatch.setenv("TIERCEL_SECRETS", str(tmp_path))
    settings = Settings.load()
    assert settings.amqp == (tmp_path / "tiercel_amqp").read_text()
    assert settings.redis == (tmp_path / "tiercel_redis").read_text()
    assert settings.token == (tmp_path / "tiercel_token").read_text()
    monkeypatch.setenv("TIERCEL_REDIS", "redis://elsewhere")
    assert Settings.load().redis == "redis://elsewhere"


def test_servers_and_addresses_agree(tmp_path: Path):
    draw_credentials(tmp_path)
    settings = Settings.load(
        amqp=(tmp_path / "tiercel_amqp").read_text(), management=(tmp_path / "tiercel_management").read_text()
    )
    [password] = [
        line.partition(" = ")[2] for line in (tmp_path / "rabbitmq.conf").read_text().splitlines() if "default_pass" in line
    ]
    assert f":{password}@" in (settings.amqp or "")
    assert f":{password}@" in (settings.management or "")
    assert (tmp_path / "redis.conf").read_text().split()[1] in (tmp_path / "tiercel_redis").read_text()


@pytest.mark.parametrize("arguments", [[], ["one", "two"], ["/proc/nowhere"]])
def test_a_wrong_call_is_one_line_and_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
