"""Addresses of Redis: one server, one that Sentinels watch, or a Redis Cluster. Pure.

    redis://[[user]:password@]host[:6379][/0][?option=…]           one server; rediss:// with TLS,
                                                                   unix:///path for a socket
    redis+sentinel://[[user]:password@]host[:26379][,host…]/service[/0][?option=…]      the primary
                                                                                        of this name
    redis+cluster://[[user]:password@]host[:6379][,host…][?option=…]                    a cluster,
                                                                                        of which
                                                                                        these are
                                                                                        some

User and password are those of Redis; a Sentinel's own stand in the options ``sentinel_username``
and ``sentinel_password``. ``rediss+sentinel`` and ``rediss+cluster`` are TLS, to the Sentinels too.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tiercel.acker.errors import RedisRefusedError

_FORM = re.compile(r"(rediss?)\+(sentinel|cluster)://(.*)", re.DOTALL | re.IGNORECASE)
_AFTER_PLACE = re.compile(r"[/?#]")
_BETWEEN_URLS = re.compile(r",(?=\s*(?:[a-z][a-z0-9+.-]*://|$))", re.IGNORECASE)
_SENTINEL_PORT = 26379
_PORT = 6379
_SENTINEL_EXAMPLE = "redis+sentinel://:password@host:26379,other:26379/mymaster/0"
_CLUSTER_EXAMPLE = "redis+cluster://:password@host:6379,other:6379"


class Form(enum.Enum):
    """Source of the primary's address."""

    # The URL itself.
    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, kw_only=True)
class RedisAddress:
    """A URL, taken apart as far as redis-py does not do it."""

    form: Form
    # For redis-py; with Sentinels or a cluster its host is a placeholder for the one that is found.
    url: str = field(repr=False)
    # The Sentinels, or the known members of the cluster.
    hosts: tuple[tuple[str, int], ...] = ()
    # The primary's name at the Sentinels.
    service: str = ""
    # User and password at the Sentinels.
    login: tuple[str | None, str | None] = field(default=(None, None), repr=False)

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Raises RedisRefusedError for a malformed URL.

        Never shows a part that may be a password.
        """
        if at_behind_host(url):
            raise RedisRefusedError(
                "the Redis URL has an '@' behind its host; percent-encode the password: '/' is "
                "%2F, '?' is %3F, '#' is %23, '@' is %40"
            )
        found = _FORM.fullmatch(url)
        if found is None:
            return cls(form=Form.SERVER, url=url)
        scheme = found[1].lower()
        form = Form(found[2].lower())
        rest = found[3]
        # Each host is read by itself: from 3.14 on, urlsplit refuses a list of hosts with
        # one in brackets.
        place = _AFTER_PLACE.split(rest, maxsplit=1)[0]
        parts = urlsplit(f"//{rest[len(place) :]}")
        login, at, listed = place.rpartition("@")
        hosts = tuple(_host(form, each) for each in listed.split(","))
        path = [unquote(part) for part in parts.path.split("/")[1:] if part]
        service = path.pop(0) if form is Form.SENTINEL and path else ""
        if (
            (form is Form.SENTINEL) is not bool(service)
            or len(path) > 1
            or (path and not path[0].isdecimal())
        ):
            raise _malformed(form)
        if form is Form.CLUSTER and path not in ([], ["0"]):
            raise RedisRefusedError("a Redis Cluster has database 0 alone; leave it out of the URL")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        own = (options.pop("sentinel_username", None), options.pop("sentinel_password", None))
        database = path[0] if path else "0"
        # The host is a stand-in: an address that is found may be an IPv6 one, and TLS is for the
        # host that is found.
        plain = f"{scheme}://{login}{at}found-later/{database}?{urlencode(options)}"
        return cls(form=form, url=plain, hosts=hosts, service=service, login=own)


def at_behind_host(url: str) -> bool:
    """Return True if a password with a slash, ``?`` or ``#`` was cut, so that a part of it is the
    host.

    >>> at_behind_host("redis://:p@ss/word@host:6379/0")
    True
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "unix":
        return False
    parts = urlsplit(f"//{rest[len(_AFTER_PLACE.split(rest, maxsplit=1)[0]) :]}")
    names = (name for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return any("@" in part for part in (parts.path, parts.fragment, *names))


def split_urls(text: str) -> list[str]:
    """The URLs of a list with commas; the hosts within one URL have commas too.

    >>> split_urls("redis://a,redis+sentinel://b,c/name, redis://d")
    ['redis://a', 'redis+sentinel://b,c/name', 'redis://d']
    """
    return [url for url in (part.strip() for part in _BETWEEN_URLS.split(text)) if url]


def _host(form: Form, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        host = None
        port = None
    if not host or port == 0:
        raise _malformed(form)
    return host, port or (_SENTINEL_PORT if form is Form.SENTINEL else _PORT)


def _malformed(form: Form) -> RedisRefusedError:
    example = _SENTINEL_EXAMPLE if form is Form.SENTINEL else _CLUSTER_EXAMPLE
    return RedisRefusedError(f"malformed Redis URL; it should look like {example}")
