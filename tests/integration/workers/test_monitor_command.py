"""``tiercel monitor`` before its page is up: its address, its token, its extra."""

import os
import re
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.support.waiting import wait_until
from tiercel.workers.cli.app import app
from tiercel.workers.config import Settings
from tiercel.workers.errors import ConfigError, UsageError

NOWHERE = ["--amqp", "amqp://127.0.0.1:1", "--redis", "redis://127.0.0.1:1"]


def test_it_starts_while_no_server_is_there_and_says_its_token_and_ends_when_told(tmp_path):
    log = tmp_path / "log"
    environment = {name: value for name, value in os.environ.items() if name != "TIERCEL_TOKEN"}
    with log.open("w") as file:
        command = [sys.executable, "-m", "tiercel", "monitor", "--port", "0", *NOWHERE]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        wait_until(lambda: "the page is at http://127.0.0.1:" in log.read_text(), 60)
        assert re.search(r"^the token of this monitor is \S{16}$", log.read_text(), re.MULTILINE)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_an_address_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port}: .*--port"):
            CliRunner().invoke(
                app, ["monitor", "--port", str(port), *NOWHERE], catch_exceptions=False
            )


def test_without_its_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nicegui", None)
    pages = [name for name in sys.modules if name.startswith("tiercel.workers.monitoring.page.")]
    for module in pages:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(Exception, match=r"pip install 'tiercel\[monitor\]'"):
        CliRunner().invoke(app, ["monitor", *NOWHERE], catch_exceptions=False)


def test_a_token_is_never_shown_and_never_short(monkeypatch):
    monkeypatch.setenv("TIERCEL_TOKEN", "very secret token")
    settings = Settings.load()
    assert settings.token == "very secret token"
    assert "very secret token" not in repr(settings)
    monkeypatch.setenv("TIERCEL_TOKEN", "fifteen letters")
    with pytest.raises(ConfigError, match="TIERCEL_TOKEN"):
        Settings.load()


def test_a_host_that_is_none_is_refused_in_one_line():
    with pytest.raises(UsageError, match="--allowed-host http://page:8710: write a host name"):
        CliRunner().invoke(
            app, ["monitor", "--allowed-host", "http://page:8710", *NOWHERE], catch_exceptions=False
        )
