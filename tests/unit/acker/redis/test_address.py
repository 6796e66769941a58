"""URLs of Redis: one server, Sentinels, a cluster."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions

from tiercel import RedisRefusedError
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.pool import Finder, Form, RedisAddress, split_urls


def test_a_url_of_one_server_is_left_to_redis_py():
    for url in ("redis://:hush@host:1/2", "unix:///tmp/redis.sock", "rediss://host?ssl_ca_certs=x"):
        assert RedisAddress.parse(url) == RedisAddress(form=Form.SERVER, url=url)


def test_sentinels_their_service_and_two_logins_are_read():
    url = "rediss+sentinel://me:p%40ss@one,two:26380,[::1]:3/my%20master/4?sentinel_password=p%26q&client_name=me"
    address = RedisAddress.parse(url)
    assert address.form is Form.SENTINEL
    assert address.hosts == (("one", 26379), ("two", 26380), ("::1", 3))
    assert (address.service, address.login) == ("my master", (None, "p&q"))
    options = connect(url).connection_pool.connection_kwargs
    assert [options[name] for name in ("username", "password", "db", "client_name")] == [
        "me",
        "p@ss",
        4,
        "me",
    ]


def test_the_members_of_a_cluster_are_read():
    address = RedisAddress.parse("redis+cluster://:hush@one:7000,two")
    assert (address.form, address.hosts) == (Form.CLUSTER, (("one", 7000), ("two", 6379)))
    assert "hush" not in repr(address)


def test_the_clients_of_one_hash_tag_share_their_connections():
    url = "redis+cluster://one:7000"
    first, second, other = (connect(url, key) for key in ("{a}", "{a}", "{b}"))
    assert first.connection_pool is second.connection_pool
    assert first.connection_pool is not other.connection_pool
    with pytest.raises(ValueError, match="give a key"):
        connect(url)


def test_hosts_do_not_split_a_list_of_urls():
    given = "redis://:a,b@one, redis+sentinel://x:1,y:2/name ,rediss://two,"
    assert split_urls(given) == [
        "redis://:a,b@one",
        "redis+sentinel://x:1,y:2/name",
        "rediss://two",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:hush@one", "redis+sentinel://:hush@one/", "redis+sentinel://:hush@/name",
        "redis+sentinel://:hush@one,/n",
        "redis+sentinel://:hush@one:port/name", "redis+sentinel://:hush@one/name/first",
        "redis+sentinel://:hush@one/name/0/1",
        "redis+cluster://:hush@", "redis+cluster://:hush@one:0", "redis+cluster://:hush@one/name",
        "redis+cluster://:hush@[::1",
        "redis+cluster://:hush@one/3", "redis+other://:hush@one",
        "redis+sentinel://one/name?colour=hush", "redis+cluster://:hush",
    ],
)  # fmt: skip
def test_a_bad_url_is_one_clear_line_without_the_password(url):
    with pytest.raises(RedisRefusedError) as caught:
        connect(url, "{tag}").connection_pool.make_connection()
    message = str(caught.value)
    assert "Redis" in message
    assert "hush" not in message
    assert "\n" not in message


@pytest.mark.parametrize("form", ["redis://{}", "redis+sentinel://{}/name", "redis+cluster://{}"])
@pytest.mark.parametrize("character", "/?#")
def test_a_password_that_is_not_percent_encoded_is_refused_with_the_remedy(form, character):
    for password in (f"hu{character}sh", f"h@u{character}sh", f"hu{character}sh@"):
        with pytest.raises(RedisRefusedError, match="percent-encode the password") as caught:
            RedisAddress.parse(form.format(f":{password}@host:6379"))
        assert "sh" not in str(caught.value)
    assert RedisAddress.parse("unix:///tmp/a@b.sock").form is Form.SERVER


@given(st.text())
def test_any_text_is_an_address_or_refused(text):
    for url in (text, f"redis+sentinel://{text}", f"redis+cluster://me:hush@{text}"):
        with suppress(RedisRefusedError):
            RedisAddress.parse(url)


def test_who_does_not_answer_is_asked_last_from_then_on():
    asked = []

    def ask(host):
        asked.append(host)
        if host == ("one", 1):
            raise exceptions.ConnectionError("away")
        return ("primary", 6379), [("three", 3)]

    finder = Finder([("one", 1), ("two", 2)], ask)
    assert [finder.find(), finder.find()] == [("primary", 6379)] * 2
    assert asked == [("one", 1), ("two", 2), ("two", 2)]


def test_when_nobody_answers_the_last_answer_is_told():
    def ask(host):
        raise exceptions.ConnectionError(f"{host[0]} is away")

    with pytest.raises(exceptions.ConnectionError, match="two is away"):
        Finder([("one", 1), ("two", 2)], ask).find()


@pytest.mark.parametrize("path", ["abc", "1/2", "0x1", "/1", "1 2", "-1"])
def test_a_database_is_a_number(path):
    """redis-py takes database 0 for the first, and 12 for the second."""
    with pytest.raises(RedisRefusedError, match="must end with the number of a database"):
        RedisAddress.parse(f"redis://:hush@host/{path}")


@pytest.mark.parametrize("url", ["redis://h", "redis://h/", "redis://h/3", "redis://h?db=3"])
def test_a_database_may_be_left_out(url):
    assert connect(url).connection_pool.connection_kwargs.get("db", 0) == (3 if "3" in url else 0)


@pytest.mark.parametrize("option", ["decode_responses=true", "protocol=3", "retry=3"])
@pytest.mark.parametrize("url", ["redis://h/0", "unix:///s", "redis+sentinel://h/main/0"])
def test_an_option_that_tiercel_sets_itself_is_one_line(url, option):
    name = option.partition("=")[0]
    with pytest.raises(RedisRefusedError, match=f"option {name}, which tiercel sets itself"):
        RedisAddress.parse(f"{url}?{option}")


@pytest.mark.parametrize("url", ["redis://h/0", "redis+cluster://h"])
def test_a_certificate_authority_without_tls_is_not_ignored(url):
    with pytest.raises(RedisRefusedError, match="ssl_ca_certs, but no TLS: begin it with rediss"):
        RedisAddress.parse(f"{url}?ssl_ca_certs=/ca.crt")
