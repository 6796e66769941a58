"""Host names that the monitor accepts, and how often strangers may try a token."""

from datetime import timedelta

import pytest

from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.page.limits import Allowance
from tiercel.workers.monitoring.page.server import AllowedHosts

HOSTS = AllowedHosts.of(["Monitor", "tiercel.example.com", "::2"])


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8710",
        "127.0.0.1:1",
        "[::1]:8710",
        "monitor:8710",
        "tiercel.example.com",
        "[::2]",
        "10.0.0.7:80",
    ],
)
def test_a_loopback_name_a_given_one_and_the_address_of_the_connection_are_let_in(host):
    assert HOSTS.admit(host, "10.0.0.7")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8710", "localhost.evil.example", "localhost@evil.example",
        "evil.example@localhost", "a.monitor",
        "127.0.0.1.nip.io", "", "localhost:", "localhost:80:80", "localhost, evil", "10.0.0.8",
        "localhost\r\nx", "[localhost]",
        "::1",
    ],
)  # fmt: skip
def test_any_other_is_not(host):
    assert not HOSTS.admit(host, "10.0.0.7")


def test_an_ipv4_address_is_the_same_on_a_socket_for_both():
    assert AllowedHosts().admit("10.0.0.7:8710", "::ffff:10.0.0.7")


@pytest.mark.parametrize(
    ("origin", "host", "let_in"),
    [
        ("http://localhost:8710", "localhost:8710", True),
        ("http://LOCALHOST:8710", "localhost:8710", True),
        ("http://localhost:3000", "localhost:8710", False),
        ("https://tiercel.example.com", "monitor:8710", True),
        ("https://tiercel.example.com.evil.example", "monitor:8710", False),
        ("http://evil.example:8710", "localhost:8710", False),
        ("null", "localhost:8710", False),
        ("file://localhost:8710", "localhost:8710", False),
        ("", "localhost:8710", False),
    ],
)
def test_only_our_own_page_is_an_origin(origin, host, let_in):
    assert HOSTS.admit_origin(origin, host) is let_in


@pytest.mark.parametrize("name", ["http://monitor", "monitor:8710", "*", "", "a b", "a/b"])
def test_what_is_no_host_is_refused_in_one_line(name):
    with pytest.raises(UsageError, match="write a host name or address, without scheme and port"):
        AllowedHosts.of([name])


def test_an_allowance_gives_a_few_at_once_and_then_one_now_and_again():
    now = [0.0]
    allowance = Allowance(3, timedelta(seconds=10), lambda: now[0])
    assert [allowance.take() for _ in range(5)] == [True, True, True, False, False]
    assert allowance.wait_s == 10
    now[0] = 9.0
    assert not allowance.take()
    now[0] = 10.5
    assert allowance.take()
    assert not allowance.take()
    now[0] = 1000.0
    assert [allowance.take() for _ in range(5)] == [True, True, True, False, False]
