"""Effects in Redis: prepared scripts and commands, sent alone or together.

A store prepares its scripts on a ``RedisServer`` and hands out ``RedisEffect``s. Both ``perform``
and ``perform_all`` send effects in one pipeline per server, in the order given.
``perform_in_turn`` joins scripts into one, so that the server stops at the first script that it
refuses. Effects of several stores are sent together if their servers share a connection pool, that
is if their URLs are equal (in a cluster: URL and hash tag).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any, Generic, TypeVar, cast

from redis import exceptions

from tiercel.acker.effects import Following
from tiercel.acker.redis.clients import check_version, connect
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis.pool import Form, Pool, RedisAddress

T = TypeVar("T")
Reader = Callable[[Any], T]

# Longest wait for a push in one call, and the timeout after which a dead connection is noticed.
_LONGEST_WAIT = timedelta(seconds=5)
_WAITING_TIMEOUT = timedelta(seconds=10)
# First line of scripts that also run on a server that is out of memory: they free memory, or
# tuples in flight could not finish without them.
_ALSO_WHEN_FULL = "#!lua flags=allow-oom\n"
# Most keys and arguments of scripts that are joined into one.
_JOINED_WORDS = 5_000


@dataclass(frozen=True, slots=True)
class RedisEffect(Generic[T]):
    """One prepared call to one server. ``read`` converts the server's reply into the effect's.

    The call may be sent more than once before a reply arrives, so its script must recognise a
    repeat.
    """

    pipeline: RedisServer
    command: tuple[Any, ...]
    read: Reader[T]
    # The action, for errors: "cannot ``verb``: …".
    verb: str
    # The text of the script, if ``command`` names it by its digest.
    text: str | None = None
    # Prepares the call to make instead if the server is out of memory and refuses this one.
    when_full: Callable[[], RedisEffect[T]] | None = None
    # True if it has megabytes: joined with others it would hold up the server for long.
    large: bool = False

    def perform(self) -> T:
        """Make the call alone.

        Raises RedisUnavailableError, RedisRefusedError, and the errors of ``read``.
        """
        reply: T = self.pipeline.perform([self])[0]
        return reply

    def in_full(self) -> tuple[Any, ...]:
        """Return the command with the script's text instead of its digest."""
        return self.command if self.text is None else ("EVAL", self.text, *self.command[2:])

    @property
    def words(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The keys and the arguments of a script."""
        first_arg = 3 + self.command[2]
        return self.command[3:first_arg], self.command[first_arg:]


@dataclass(frozen=True, slots=True)
class RedisScript:
    """A script on one server; a call of it is an effect."""

    server: RedisServer
    text: str
    digest: str

    def __call__(
        self,
        keys: Sequence[str],
        args: Sequence[Any],
        read: Reader[T],
        verb: str,
    ) -> RedisEffect[T]:
        command = ("EVALSHA", self.digest, len(keys), *keys, *args)
        return RedisEffect(self.server, command, read, verb, self.text)


def nothing(_reply: object) -> None:
    """Ignore a reply."""


def pairs(reply: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the names and values of a reply that has them in turn, such as that of HGETALL."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


class RedisServer:
    """One server, or one hash slot of a cluster. Thread-safe; connects on its first call.

    Servers with the same connections are equal: effects of several stores form one pipeline.
    """

    def __init__(self, url: str, key: str = "") -> None:
        """``url`` and ``key`` are for ``connect``, which raises RedisRefusedError, ValueError."""
        self._client = connect(url, key)
        self._waiting = connect(url, key, socket_timeout=_WAITING_TIMEOUT, retries=0)
        self._pool = cast("Pool", self._client.connection_pool)
        self._waiting_pool = cast("Pool", self._waiting.connection_pool)
        self._hash = hash(id(self._pool))
        self._checked = False
        # Texts of the scripts that were sent; None stands for plain commands.
        self._known: set[str | None] = {None}
        self._chains: dict[tuple[str, ...], RedisScript] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RedisServer) and self._pool is other._pool

    def __hash__(self) -> int:
        return self._hash

    def script(self, text: str) -> RedisScript:
        """Prepare a script, whose text is sent to the server on its first call."""
        return RedisScript(self, text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    def command(
        self, *words: Any, verb: str, read: Reader[T] = lambda reply: reply
    ) -> RedisEffect[T]:
        """Prepare a plain command that may be repeated."""
        return RedisEffect(self, words, read, verb)

    def perform(self, effects: Sequence[RedisEffect[Any]]) -> list[Any]:
        """Make the calls in order, in one round trip; return their replies.

        The first error is raised after all calls were made. After its first call, a script is
        called by its digest. If the server has forgotten the script since, all scripts of the
        pipeline are repeated with their texts: the calls after it have then taken effect before it.
        """
        return self._perform(effects, self._pool)

    def perform_waiting(self, effects: Sequence[RedisEffect[Any]]) -> list[Any]:
        """Make the calls like ``perform``, where one of them is a ``wait``.

        Each thread that waits has a connection of its own. If that breaks, the calls are not
        repeated, because the wait may have popped its element: RedisUnavailableError.
        """
        return self._perform(effects, self._waiting_pool)

    def _perform(self, effects: Sequence[RedisEffect[Any]], pool: Pool) -> list[Any]:
        if not effects:
            return []
        try:
            self._check()
            replies = self._replies(effects, pool)
        except (exceptions.RedisError, exceptions.RedisClusterException):
            with translated(effects[0].verb, self._client):
                raise
        return [effect.read(reply) for effect, reply in zip(effects, replies, strict=True)]

    def _replies(self, effects: Sequence[RedisEffect[Any]], pool: Pool) -> list[Any]:
        known = self._known
        replies = pool.exchange([e.command if e.text in known else e.in_full() for e in effects])
        known.update([effect.text for effect in effects])
        if [reply for reply in replies if isinstance(reply, exceptions.RedisError)]:
            self._repeat_unknown(effects, replies, pool)
            self._make_instead(effects, replies)
            for effect, reply in zip(effects, replies, strict=True):
                if isinstance(reply, exceptions.RedisError):
                    with translated(effect.verb, self._client):
                        raise reply
        return replies

    @staticmethod
    def _repeat_unknown(
        effects: Sequence[RedisEffect[Any]], replies: list[Any], pool: Pool
    ) -> None:
        """Repeat the scripts with their texts if the server has forgotten one of them."""
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            scripts = [at for at, effect in enumerate(effects) if effect.text is not None]
            again = pool.exchange([effects[at].in_full() for at in scripts])
            for at, reply in zip(scripts, again, strict=True):
                replies[at] = reply

    def _make_instead(self, effects: Sequence[RedisEffect[Any]], replies: list[Any]) -> None:
        """Make the ``when_full`` calls of effects that the server refused for lack of memory."""
        instead = {
            at: effect.when_full()
            for at, (effect, reply) in enumerate(zip(effects, replies, strict=True))
            if effect.when_full is not None and isinstance(reply, exceptions.OutOfMemoryError)
        }
        if instead:
            made = self._pool.exchange([effect.in_full() for effect in instead.values()])
            for at, reply in zip(instead, made, strict=True):
                replies[at] = reply

    def perform_in_turn(self, effects: Sequence[RedisEffect[Any]]) -> list[Any]:
        """Make each call only if the one before went well: its script replied 1, or a table that
        does not begin with false; as read, the reply is true.

        Return the replies of the calls that were made.

        Scripts with few arguments are joined into one: a single round trip, and atomic. If one of
        them fails, the scripts before it have taken effect.
        """
        replies: list[Any] = []
        for together in _bounded(effects):
            replies += self._perform_joined(together)
            if len(replies) < len(effects) and not replies[-1]:
                break
        return replies

    def _perform_joined(self, effects: Sequence[RedisEffect[Any]]) -> list[Any]:
        if len(effects) == 1:
            return [effects[0].perform()]
        found = self._joined(effects).perform()
        return [effect.read(reply) for effect, reply in zip(effects, found, strict=False)]

    def followed(self, first: RedisEffect[T], then: Following[Any]) -> RedisEffect[T]:
        """Join two scripts into one: ``then`` runs if ``first`` goes well, see ``perform_in_turn``.

        Return ``first`` alone if ``then`` is a call of another server.
        """
        second = then.effect
        if not isinstance(second, RedisEffect) or second.pipeline != self:
            return first

        def read(replies: list[Any]) -> T:
            found = first.read(replies[0])
            if len(replies) > 1:
                then.reply = second.read(replies[1])
            return found

        joined = self._joined([first, second])
        return RedisEffect(self, joined.command, read, first.verb, joined.text)

    def _joined(self, effects: Sequence[RedisEffect[Any]]) -> RedisEffect[list[Any]]:
        """Join calls of scripts into one call, which replies as many as were made."""
        numbers: dict[str, int] = {}  # of the scripts, each of which the joined script has once
        keys: list[Any] = []
        calls: list[int] = []
        args: list[Any] = []
        for effect in effects:
            own_keys, own_args = effect.words
            number = numbers.setdefault(effect.text or "", len(numbers) + 1)
            calls += (number, len(own_keys), len(own_args))
            keys += own_keys
            args += own_args
        script = self._chain(tuple(numbers))
        verbs = ", ".join(dict.fromkeys(effect.verb for effect in effects))
        joined = script(keys, [len(effects), *calls, *args], list, verbs)
        if any(effect.when_full for effect in effects):
            return replace(joined, when_full=lambda: self._joined([*map(_when_full, effects)]))
        return joined

    def _chain(self, texts: tuple[str, ...]) -> RedisScript:
        """Prepare the script that joins these scripts, once."""
        found = self._chains.get(texts)
        if found is None:
            found = self._chains[texts] = self.script(in_turn(texts))
        return found

    def wait(self, keys: Sequence[str], most: timedelta, verb: str) -> RedisEffect[Any]:
        """Prepare a wait until one of these lists has an element, which it pops.

        For ``perform_waiting``. It ends after ``most``, or after a few seconds.
        """
        seconds = max(0.001, min(most, _LONGEST_WAIT).total_seconds())
        return self.command("BLPOP", *keys, seconds, verb=verb)

    def close(self) -> None:
        """Release the connections that no other server shares. Idempotent."""
        self._client.close()
        self._waiting.close()

    def _check(self) -> None:
        if not self._checked:
            check_version(self._client)
            self._checked = True


def _when_full(effect: RedisEffect[T]) -> RedisEffect[T]:
    return effect if effect.when_full is None else effect.when_full()


def _bounded(effects: Sequence[RedisEffect[Any]]) -> list[list[RedisEffect[Any]]]:
    """Group effects into scripts of a bounded size: a larger one would block other clients."""
    groups: list[list[RedisEffect[Any]]] = [[]]
    words = 0
    alone = False
    for effect in effects:
        words += len(effect.command)
        before, alone = alone, effect.text is None or effect.large
        if groups[-1] and (words > _JOINED_WORDS or alone or before):
            groups.append([])
            words = len(effect.command)
        groups[-1].append(effect)
    return groups


@cache
def script_source(*names: str, package: str = "tiercel.acker") -> str:
    """Return the text of a script in the folder ``lua/`` of a package, after its preludes.

    The script's line of flags comes first.
    """
    folder = resources.files(package).joinpath("lua")
    *preludes, own = (folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names)
    flags = own[: own.index("\n") + 1] if own.startswith("#!") else ""
    return "".join([flags, *preludes, own[len(flags) :]])


def in_turn(texts: Sequence[str]) -> str:
    """Return a script that calls these scripts one after the other: see lua/in_turn.lua.

    It runs on a server that is out of memory only if all of these scripts do.
    """
    full = all(text.startswith(_ALSO_WHEN_FULL) for text in texts)
    parts = [_ALSO_WHEN_FULL if full else "", "local scripts = {}\n"]
    for number, text in enumerate(texts, start=1):
        body = text.partition("\n")[2] if text.startswith("#!") else text
        parts.append(f"scripts[{number}] = function(KEYS, ARGV)\n{body}\nend\n")
    return "".join([*parts, script_source("in_turn", package="tiercel.acker.redis")])


class RedisServers:
    """The servers of one store by number, one object per server, or per hash tag in a cluster."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Raises RedisRefusedError for a malformed URL."""
        if not urls:
            raise ValueError("a store in Redis needs a server at least")
        self._urls = tuple(urls)
        self._by_key = [RedisAddress.parse(url).form is Form.CLUSTER for url in urls]
        self._servers: dict[tuple[int, str], RedisServer] = {}

    def __len__(self) -> int:
        return len(self._urls)

    def at(self, number: int, key: str) -> RedisServer:
        """Return the server that holds a key: server ``number``, or in the cluster of this number
        the server of the key's hash tag.
        """
        place = (number, _tag(key) if self._by_key[number] else "")
        found = self._servers.get(place)
        if found is None:
            found = self._servers.setdefault(place, RedisServer(self._urls[number], place[1]))
        return found

    def close(self) -> None:
        """Release the connections. Idempotent."""
        for server in list(self._servers.values()):
            server.close()


def _tag(key: str) -> str:
    """Return a key that is the same for all keys with one hash tag."""
    tag = key.partition("{")[2].partition("}")[0]
    return f"{{{tag}}}" if tag else key
