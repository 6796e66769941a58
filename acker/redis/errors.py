"""Translates errors of Redis and redis-py into ours: retry or refuse.

RedisUnavailableError (retry) is for faults that pass by themselves, or once an operator repairs the
server: a process waits for that. RedisRefusedError (refuse) is for a wrong address, missing
permissions or the wrong kind of server: waiting does not help.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import redis
from redis import exceptions

from tiercel.acker.errors import (
    AckerError,
    RedisPassingRefusalError,
    RedisRefusedError,
    RedisUnavailableError,
)
from tiercel.acker.redis.pool import Pool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Meaning:
    """Meaning of an error: the state of the server, and what to do about it."""

    passes: bool
    said: str
    advice: str


def _away(advice: str) -> _Meaning:
    return _Meaning(passes=True, said="does not answer", advice=advice)


def _no_writes(advice: str) -> _Meaning:
    return _Meaning(passes=True, said="takes no writes now", advice=advice)


def _refusal(advice: str) -> _Meaning:
    return _Meaning(passes=False, said="refuses", advice=advice)


_CLIENT = "see ssl_certfile and ssl_keyfile, and its log"
SCHEMES = "whether its URL should begin with redis:// or rediss://"
_CHECK = "check that it runs"
_LOGIN = _refusal("check the user and password in its URL and what the user may do")
_MEMBER = _refusal("it is a member of a Redis Cluster: begin its URL with redis+cluster://")
_NO_CLUSTER = _refusal("it is no member of a Redis Cluster: begin its URL with redis://")
_CLUSTER_DOWN = _away("check that it runs with all members of the cluster")
_ELSE = _refusal("check its log and settings")
_BY_CODE = {
    "LOADING": _away("check that it runs; it reads its data from the disk, wait for that"),
    "BUSY": _away("a script of another program keeps it busy: SCRIPT KILL ends that"),
    "CLUSTERDOWN": _CLUSTER_DOWN,
    "TRYAGAIN": _away("a slot of the cluster moves to another member: wait for that"),
    "MASTERDOWN": _away("it is a replica that has lost its primary: check that the primary runs"),
    "UNBLOCKED": _away("its role changed while a call waited: a failover is under way"),
    # The next call sends the script's text.
    "NOSCRIPT": _away("its scripts were flushed between two calls; nothing is to be done"),
    "OOM": _Meaning(
        passes=True,
        said="is full",
        advice="raise its maxmemory or free memory; until then it accepts no new data",
    ),
    "READONLY": _no_writes(
        "unless a failover is under way, point the URL at the primary, not at a replica"
    ),
    "MISCONF": _no_writes(
        "it cannot save to its disk: check the space there, its log and settings"
    ),
    "NOREPLICAS": _no_writes(
        "too few replicas keep up: check them, its log and settings (min-replicas-to-write)"
    ),
    "NOAUTH": _LOGIN,
    "WRONGPASS": _LOGIN,
    "NOPERM": _LOGIN,
    "DENIED": _refusal("it is in protected mode: give it a password, and write that into its URL"),
    "MOVED": _MEMBER,
    "ASK": _MEMBER,
    "CROSSSLOT": _refusal(
        "begin its URL with redis+cluster://, and let no proxy of a cluster stand in between"
    ),
    "WRONGTYPE": _refusal(
        "another program uses the same keys: give tiercel a database of its own, or remove the key"
    ),
}
# For errors without a code, or with an unknown code; the nearest class in the MRO counts.
_BY_CLASS: dict[type, _Meaning] = {
    exceptions.AuthenticationError: _LOGIN,
    exceptions.AuthenticationWrongNumberOfArgsError: _LOGIN,
    exceptions.AuthorizationError: _LOGIN,
    exceptions.NoPermissionError: _LOGIN,
    exceptions.MaxConnectionsError: _away("raise max_connections in its URL, or leave it out"),
    exceptions.BusyLoadingError: _BY_CODE["LOADING"],
    exceptions.MasterDownError: _BY_CODE["MASTERDOWN"],
    exceptions.ClusterDownError: _CLUSTER_DOWN,
    exceptions.SlotNotCoveredError: _CLUSTER_DOWN,
    exceptions.TryAgainError: _BY_CODE["TRYAGAIN"],
    exceptions.NoScriptError: _BY_CODE["NOSCRIPT"],
    exceptions.OutOfMemoryError: _BY_CODE["OOM"],
    exceptions.ReadOnlyError: _BY_CODE["READONLY"],
    exceptions.AskError: _MEMBER,  # the base of MovedError
    exceptions.ClusterCrossSlotError: _BY_CODE["CROSSSLOT"],
    exceptions.CrossSlotTransactionError: _BY_CODE["CROSSSLOT"],
    # ``_meaning`` checks the error inside it first; nothing took effect.
    exceptions.ExecAbortError: _away("it discarded a transaction: see its log"),
    exceptions.InvalidResponse: _refusal(
        "what answers there speaks another protocol: check host and port"
    ),
    exceptions.ConnectionError: _away(_CHECK),
    exceptions.TimeoutError: _away(_CHECK),
}
_OF_PIPELINE = re.compile(r"Command # \d+ \(.*?\) of pipeline caused error: ", re.DOTALL)
_DISCARDED = re.compile(r"discarded because of: -?([A-Z]+)\b")
# Missing rights that Redis reports without a code. Before a login, it accepts only short commands:
# it rejects a long one as unauthenticated. Versions 7.0 and 7.2 word a command or key that a script
# may not use differently.
_NO_RIGHT = re.compile(r"unauthenticated|user executing the script can't|ACL failure in script")
_URL_CREDENTIALS = re.compile(r"://[^\s/@]*@")


# Longer than an operator needs to change a password at the server and in the processes' settings;
# after it, a supervisor starts the process with the settings of that time.
PATIENCE_S = 600.0
# Refusals that are further apart belong to different outages.
_APART_S = 60.0


class RefusalPatience:
    """Decides how long this process waits while Redis refuses a login that it has accepted, or has
    a certificate that is not trusted.

    A process that has worked waits: the password is being changed, a server that checks logins is
    away, or a certificate is renewed. Until ``begin``, such a refusal is an error at once.
    Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accepted = False
        self._first = self._last = float("-inf")

    def begin(self) -> None:
        """Note that this process has worked with Redis."""
        self._accepted = True

    def lasts(self) -> bool:
        """Return True if the process waits; called at each refusal."""
        now = self._clock()
        with self._lock:
            if now - self._last > _APART_S:
                self._first = now
            self._last = now
            return self._accepted and now - self._first < PATIENCE_S


REFUSALS = RefusalPatience()


@contextmanager
def translated(verb: str, client: redis.Redis) -> Iterator[None]:
    """Translate errors of a client that ``connect`` made into ours, "cannot ``verb``: …", with its
    server's host and port. No message shows a password.
    """
    try:
        yield
    except (exceptions.RedisError, exceptions.RedisClusterException) as error:
        said = shown(error)
        place = cast("Pool", client.connection_pool).place
        if place not in said:
            said = f"{place}: {said}"
        kind: type[AckerError] = RedisRefusedError
        if tls := _tls_advice(error):
            text = f"no TLS with Redis ({said}); {tls}"
            may_pass = isinstance(error.__context__, ssl.SSLCertVerificationError)
        else:
            meaning = _meaning(error)
            text = f"Redis {meaning.said} ({said}); {meaning.advice}"
            may_pass = meaning is _LOGIN
            if meaning.passes:
                kind = RedisUnavailableError
                text += _also_check(error.__context__)
        if may_pass and REFUSALS.lasts():
            kind = RedisPassingRefusalError
            text += f"; it was accepted before, so this is retried for {PATIENCE_S / 60:.0f} min"
        raise kind(f"cannot {verb}: {text}") from error


def shown(error: Exception) -> str:
    """Return the error in one line, without a password.

    The command of a pipeline is left out too, because it may hold users' data.
    """
    return (
        _URL_CREDENTIALS.sub("://***@", _text(error).partition("\n")[0])[:200]
        or type(error).__name__
    )


def _text(error: Exception) -> str:
    return _OF_PIPELINE.sub("", str(error), count=1)


def _meaning(error: Exception) -> _Meaning:
    code = getattr(error, "status_code", None) or _text(error).partition(" ")[0]
    if code in _BY_CODE:
        return _BY_CODE[code]
    discarded = _DISCARDED.search(str(error))
    if discarded and discarded[1] in _BY_CODE:
        return _BY_CODE[discarded[1]]
    if "cluster support disabled" in str(error):
        return _NO_CLUSTER
    if _NO_RIGHT.search(str(error)):
        return _LOGIN
    if "max number of clients" in str(error):
        return _away("raise its maxclients, or let fewer processes use it")
    return next((_BY_CLASS[kind] for kind in type(error).__mro__ if kind in _BY_CLASS), _ELSE)


def _also_check(cause: BaseException | None) -> str:
    if "handshake" in str(cause):
        return f", and {SCHEMES}"
    # Since TLS 1.3 a server refuses a client's certificate after the handshake: a client that
    # writes before it reads meets a closed connection, as when the server dies.
    if isinstance(cause, ssl.SSLEOFError):
        return f", and whether it asks for a certificate: {_CLIENT}"
    return ""


def _tls_advice(error: BaseException) -> str | None:
    """Return advice about a failed TLS handshake, whose cause the client hides; None for any other
    error.
    """
    cause = error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            "add ?ssl_ca_certs=/path/to/ca.pem to its URL, correct the host name there, or renew "
            "the certificate if it has expired"
        )
    reason = (cause.reason or "") if isinstance(cause, ssl.SSLError) else ""
    if reason == "WRONG_VERSION_NUMBER":
        return f"check the port, and {SCHEMES}"
    if "ALERT" in reason:
        return f"it asks for another certificate or protocol: {_CLIENT}"
    return None
