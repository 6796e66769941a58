"""Errors of the Redis client are translated to ours, and never contain a password."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from redis import exceptions

from tiercel import RedisRefusedError, RedisUnavailableError, RedisVersionError
from tiercel.acker.redis.clients import CALLS, check_version, connect, place_of
from tiercel.acker.redis.errors import translated

# It connects to nothing here.
CLIENT = connect("redis://redis:6379")
# Both have characters that ASCII lacks.
SCRIPTS = """
from tiercel.acker.redis.scripts import script_source
script_source("apply")
script_source("in_turn", package="tiercel.acker.redis")
"""


@pytest.mark.parametrize(
    ("error", "expected", "advice"),
    [
        (
            exceptions.ConnectionError("Error 111 connecting to host:6379."),
            RedisUnavailableError,
            "check that it runs",
        ),
        (
            exceptions.TimeoutError("Timeout reading from host:6379"),
            RedisUnavailableError,
            "check that it runs",
        ),
        (exceptions.BusyLoadingError("LOADING"), RedisUnavailableError, "check that it runs"),
        (
            exceptions.ResponseError("LOADING Redis is loading"),
            RedisUnavailableError,
            "check that it runs",
        ),
        (exceptions.ClusterDownError("CLUSTERDOWN"), RedisUnavailableError, "check that it runs"),
        (
            exceptions.AuthenticationError("invalid username-password pair"),
            RedisRefusedError,
            "password in its URL",
        ),
        (
            exceptions.NoPermissionError("NOPERM no permissions"),
            RedisRefusedError,
            "what the user may do",
        ),
        (
            exceptions.OutOfMemoryError("OOM command not allowed"),
            RedisUnavailableError,
            "maxmemory",
        ),
        (exceptions.ReadOnlyError("READONLY"), RedisUnavailableError, "primary"),
        (
            exceptions.ResponseError("MISCONF Redis cannot save to disk"),
            RedisUnavailableError,
            "log and settings",
        ),
        (exceptions.ResponseError("WRONGTYPE"), RedisRefusedError, "another program"),
    ],
)
def test_each_error_says_what_to_do(error, expected, advice):
    with pytest.raises(expected, match=advice) as caught, translated("register roots", CLIENT):
        raise error
    assert str(caught.value).startswith("cannot register roots: Redis ")
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cause", "expected", "advice"),
    [
        (
            ssl.SSLCertVerificationError(1, "certificate has expired"),
            RedisRefusedError,
            "or renew the certificate",
        ),
        # Of a server that wants a certificate, or of one that has just died.
        (
            ssl.SSLEOFError(8, "EOF occurred"),
            RedisUnavailableError,
            "check that it runs, and whether it asks for a certificate: see ssl_certfile",
        ),
    ],
)
def test_a_failure_of_tls_says_what_to_do_about_certificates(cause, expected, advice):
    error = exceptions.ConnectionError("Error while writing to socket")
    cause.reason = None
    error.__context__ = cause
    with pytest.raises(expected, match=advice), translated("register roots", CLIENT):
        raise error


def test_a_url_in_a_message_loses_its_credentials():
    with pytest.raises(RedisUnavailableError) as caught, translated("x", CLIENT):
        raise exceptions.ConnectionError("redis://user:s3cret@host:6379/0 is gone\nand more")
    assert "s3cret" not in str(caught.value)
    assert "host:6379" in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3cret@host", "redis://:s3cret@host:s3cret/0", "http://:s3cret@host/", ""]
)
def test_a_malformed_url_is_refused_without_being_said(url):
    with pytest.raises(RedisRefusedError, match="malformed") as caught:
        connect(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


class Server:
    def __init__(self, version):
        self._version = version

    def info(self, section):
        if self._version is None:
            raise exceptions.NoPermissionError("NOPERM")
        return {"redis_version": self._version}


@pytest.mark.parametrize("version", ["7.0.15", "7.2.4", "8.0.0", "255.255.255", None])
def test_servers_that_are_new_enough_are_taken(version):
    check_version(Server(version))


@pytest.mark.parametrize("version", ["6.2.14", "5.0.3"])
def test_servers_that_are_too_old_are_not(version):
    with pytest.raises(
        RedisVersionError, match=rf"Redis {version} is too old: use Redis 7.0 or newer"
    ):
        check_version(Server(version))


def test_the_clients_of_a_process_share_their_connections():
    first, second, other = (
        connect(url) for url in ("redis://one:1/0", "redis://one:1/0", "redis://two:1/0")
    )
    assert first.connection_pool is second.connection_pool
    assert first.connection_pool is not other.connection_pool


def test_each_command_of_the_scripts_is_one_that_a_user_s_rights_are_checked_for():
    root = Path(__file__).parents[4]
    scripts = [
        path
        for folder in ("acker", "spark_jobs", "workers", "queues")
        for path in (root / folder).rglob("*.lua")
    ]
    called = {
        command
        for path in scripts
        for command in re.findall(r"call\(\s*['\"]([A-Z]+)", path.read_text())
    }
    assert len(called) > 20
    assert called <= {call.split()[0] for call in CALLS}


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0",
        "redis+sentinel://127.0.0.1:1/mymaster/0",
        "redis+cluster://127.0.0.1:1",
    ],
)
def test_a_process_may_have_a_thousand_tasks_that_wait_at_one_server(url):
    """Each waits on a connection of its own; redis-py 8 has a limit of 100 by default."""
    pool = connect(url, "{a}").connection_pool
    for _ in range(1_000):
        pool.make_connection()
    named = connect(f"{url}?max_connections=2", "{a}").connection_pool
    named.make_connection()
    named.make_connection()
    with pytest.raises(exceptions.MaxConnectionsError):
        named.make_connection()


def test_scripts_are_read_whatever_the_encoding_of_the_locale():
    subprocess.run(
        [sys.executable, "-c", SCRIPTS],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        timeout=60, check=True,
    )  # fmt: skip


def test_a_socket_file_is_an_address():
    url = "unix://:hush@/run/redis.sock?db=3"
    connection = connect(url).connection_pool.make_connection()
    assert (connection.path, connection.db, connection.password) == ("/run/redis.sock", 3, "hush")
    assert place_of(url) == "/run/redis.sock"
