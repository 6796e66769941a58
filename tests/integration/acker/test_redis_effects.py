"""Effects on a real Redis: alone, in one round trip, with errors, and with flushed scripts."""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import replace

import pytest

from tests.support.proxy import Proxy
from tiercel import RedisRefusedError, RedisUnavailableError, RedisVersionError
from tiercel.acker.effects import LocalEffect, perform_all, perform_in_turn
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.scripts import RedisServer, RedisServers

PUSH = "redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('LLEN', KEYS[1])"
FAIL = "return redis.error_reply('ERR ' .. ARGV[1])"


@pytest.fixture
def server(redis_url):
    with closing(RedisServer(redis_url)) as made:
        yield made


@pytest.fixture
def key():
    return f"effects-{uuid.uuid4().hex}"


def push(server, key, what):
    return server.script(PUSH)([key], [what], int, "push")


def fail(server, why):
    return server.script(FAIL)([], [why], int, f"do {why}")


def test_effects_of_one_server_leave_together_in_order(server, key, client, trips):
    effects = [
        push(server, key, "a"),
        push(server, key, "b"),
        server.command("LLEN", key, read=str, verb="count"),
    ]
    assert perform_all(effects) == [1, 2, "2"]
    assert client.lrange(key, 0, -1) == [b"a", b"b"]
    assert trips == [3]


def test_stores_with_the_same_url_share_a_round_trip_and_others_do_not(
    server, redis_url, key, trips
):
    elsewhere = f"{redis_url.rpartition('/')[0]}/1"
    with closing(RedisServer(redis_url)) as same, closing(RedisServer(elsewhere)) as other:
        effects = [
            push(server, key, "a"),
            push(other, key, "b"),
            LocalEffect(lambda: "here"),
            push(same, key, "c"),
        ]
        assert perform_all(effects) == [1, 1, "here", 2]
        assert trips == [2, 1]
        assert server == same != other


def test_alone_is_as_together(server, key, trips):
    assert push(server, key, "a").perform() == 1
    assert push(server, key, "b").perform() == 2
    assert trips == [1, 1]
    assert server.perform([]) == []


def test_the_first_error_is_raised_when_all_calls_were_made(server, key, client):
    effects = [
        push(server, key, "a"),
        fail(server, "one"),
        fail(server, "two"),
        push(server, key, "b"),
    ]
    with pytest.raises(RedisRefusedError, match="cannot do one: Redis refuses"):
        perform_all(effects)
    assert client.llen(key) == 2


def test_what_a_reader_raises_reaches_the_caller(server, key):
    def read(reply):
        raise ValueError("no such step")

    with pytest.raises(ValueError, match="no such step"):
        replace(push(server, key, "a"), read=read).perform()


def test_scripts_of_a_batch_that_the_server_forgot_are_repeated_and_nothing_else_is(redis, trips):
    own = redis()
    with closing(RedisServer(own.url)) as server, closing(connect(own.url)) as client:
        assert perform_all(
            [push(server, "k", "a"), server.script("return 7")([], [], int, "count")]
        ) == [1, 7]
        client.script_flush()
        assert perform_all(
            [server.command("RPUSH", "k", "b", read=int, verb="push"), push(server, "k", "c")]
        ) == [2, 3]
        assert trips == [2, 2, 1]
        assert client.lrange("k", 0, -1) == [b"a", b"b", b"c"]


def test_a_reply_that_was_lost_makes_the_client_send_the_batch_again(redis_url, key, client):
    with Proxy(redis_url) as proxy, closing(RedisServer(proxy.url)) as server:
        perform_all([push(server, key, "a")])
        proxy.lose_next()
        perform_all([push(server, key, "b")])
        assert proxy.lost == 1
    assert client.lrange(key, 0, -1) == [b"a", b"b", b"b"]


def test_a_server_that_is_away_is_named_with_what_was_tried():
    server = RedisServer("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(
        RedisUnavailableError, match=r"^cannot push: Redis does not answer"
    ) as caught:
        push(server, "k", "a").perform()
    assert "secret" not in str(caught.value)
    server.close()
    server.close()


def test_a_server_that_is_too_old_is_refused_before_it_gets_a_script(
    server, key, monkeypatch, client
):
    monkeypatch.setattr("tiercel.acker.redis.clients.OLDEST", (99, 0))
    for _ in range(2):
        with pytest.raises(RedisVersionError, match="too old"):
            push(server, key, "a").perform()
    assert client.llen(key) == 0


def test_each_hash_tag_of_a_cluster_has_a_server_and_keys_of_one_tag_share_it(clustered_redis):
    with closing(RedisServers([clustered_redis.url])) as servers:
        assert servers.at(0, "{a}:x") is servers.at(0, "{a}:y")
        places = [servers.at(0, f"{{{tag}}}:k") for tag in "abcdef"]
        assert len(set(places)) == 6
        counts = perform_all(
            [push(place, f"{{{tag}}}:k", "x") for tag, place in zip("abcdef", places, strict=True)]
        )
        assert all(count >= 1 for count in counts)


def test_servers_by_number_are_one_object_each(redis_url):
    with closing(RedisServers([redis_url, f"{redis_url.rpartition('/')[0]}/1"])) as servers:
        assert len(servers) == 2
        assert servers.at(0, "{a}") is servers.at(0, "{b}")
        assert servers.at(0, "{a}") != servers.at(1, "{a}")
    with pytest.raises(ValueError, match="a server at least"):
        RedisServers([])


# -- in sequence, each only if the one before succeeded --------------------------------------------


def mark(server, key, what, reply="1"):
    """Record ``what`` and reply; the reply 1 allows the next call."""
    text = (
        "#!lua flags=allow-oom\nredis.call('RPUSH', KEYS[1], ARGV[#ARGV]) if true then return "
        f"{reply} end\nreturn 7"
    )
    return server.script(text)([key], [what], well, "mark")


def well(reply):
    """Return True for the reply 1, a table that begins with something, and False for others."""
    if not isinstance(reply, list):
        return reply == 1
    return reply if reply and reply[0] is not None else False


def test_calls_in_turn_are_one_round_trip_with_a_reply_each(server, key, client, trips):
    effects = [
        mark(server, key, "a"),
        mark(server, key, "b"),
        mark(server, key, "c", reply="{'x', 'y'}"),
    ]
    assert perform_in_turn(effects) == [True, True, [b"x", b"y"]]
    assert client.lrange(key, 0, -1) == [b"a", b"b", b"c"]
    assert trips == [1]


def test_a_script_that_is_called_several_times_has_its_own_words_each_time(server, key, client):
    effects = [mark(server, key, "a"), mark(server, f"{key}:2", "b"), mark(server, key, "c")]
    assert perform_in_turn(effects) == [True] * 3
    assert perform_in_turn(effects[1:]) == [True] * 2
    assert client.lrange(key, 0, -1) == [b"a", b"c", b"c"]
    assert client.lrange(f"{key}:2", 0, -1) == [b"b", b"b"]


@pytest.mark.parametrize("refusal", ["0", "2", "false", "{}", "{false, 1}"])
def test_behind_a_call_that_is_refused_none_is_made(server, key, client, refusal):
    effects = [
        mark(server, key, "a"),
        mark(server, key, "b", reply=refusal),
        mark(server, key, "c"),
    ]
    replies = perform_in_turn(effects)
    assert replies[0] is True
    assert not replies[1]
    assert len(replies) == 2
    assert client.lrange(key, 0, -1) == [b"a", b"b"]


@pytest.mark.parametrize(
    "raises", ["return redis.error_reply('ERR no')", "return redis.call('HGET', KEYS[1], 'f')"]
)
def test_behind_a_call_that_fails_none_is_made(server, key, client, raises):
    failing = server.script(raises)([key], [], bool, "do one")
    with pytest.raises(RedisRefusedError, match="cannot mark, do one: Redis refuses"):
        perform_in_turn([mark(server, key, "a"), failing, mark(server, key, "c")])
    assert client.lrange(key, 0, -1) == [b"a"]


def test_over_several_servers_each_call_waits_for_the_one_before(
    server, redis_url, key, client, trips
):
    elsewhere = f"{redis_url.rpartition('/')[0]}/1"
    with closing(RedisServer(elsewhere)) as other:
        here = LocalEffect(lambda: True)
        assert (
            perform_in_turn(
                [mark(server, key, "a"), mark(other, key, "b"), here, mark(server, key, "c")]
            )
            == [True] * 4
        )
        assert trips == [1, 1, 1]
        assert perform_in_turn([mark(other, key, "d", reply="0"), mark(server, key, "e")]) == [
            False
        ]
    assert perform_in_turn([LocalEffect(lambda: False), mark(server, key, "f")]) == [False]
    assert client.lrange(key, 0, -1) == [b"a", b"c"]


def test_calls_with_many_arguments_and_plain_commands_go_by_themselves(server, key, client, trips):
    def push_many(what):
        text = "redis.call('RPUSH', KEYS[1], ARGV[1], #ARGV) return 1"
        return server.script(text)([key], [what] * 4_000, bool, "push")

    command = server.command("RPUSH", key, "b", read=bool, verb="push")
    assert (
        perform_in_turn([push_many("a"), push_many("a"), command, mark(server, key, "c")])
        == [True] * 4
    )
    assert client.lrange(key, 0, -1) == [b"a", b"4000", b"a", b"4000", b"b", b"c"]
    assert trips == [1, 1, 1, 1]


def test_calls_in_turn_whose_scripts_the_server_forgot_are_made_once(redis):
    own = redis()
    with closing(RedisServer(own.url)) as server, closing(connect(own.url)) as client:
        for what in "ab":
            assert perform_in_turn([mark(server, "k", what), mark(server, "k", what)]) == [
                True,
                True,
            ]
            client.script_flush()
        assert client.lrange("k", 0, -1) == [b"a", b"a", b"b", b"b"]
