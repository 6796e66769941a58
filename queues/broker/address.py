"""Addresses of RabbitMQ: an AMQP URL, read strictly and shown without its password."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

import pika

from tiercel.queues.errors import AddressError

_PORTS = {"amqp": 5672, "amqps": 5671}
_OPTIONS = ("heartbeat", "cafile", "certfile", "keyfile")
_OPTIONS_OF_TLS = _OPTIONS[1:]
# A dead connection is noticed within twice this time. The I/O thread answers heartbeats even
# if the other threads are busy. RabbitMQ's manual recommends 5 to 20 seconds.
_HEARTBEAT_S = 10
_CONNECT_TIMEOUT_S = 10.0
_AFTER_PLACE = re.compile(r"[/?#]")
_EXAMPLE = "write amqp://user:password@host:5672/vhost"


@dataclass(frozen=True, kw_only=True)
class Address:
    """A broker: one server or the members of a cluster, tried in turn."""

    hosts: tuple[tuple[str, int], ...]
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: bool
    # Files in PEM format: the authorities that may have signed the servers' certificates, and the
    # client's own certificate with its key.
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    heartbeat_s: int = _HEARTBEAT_S

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read
        ``amqp[s]://[user[:password]@]host[:port][,host[:port]…][/vhost][?option=value&…]``.

        The options are ``heartbeat`` in seconds, and with ``amqps`` the files ``cafile``,
        ``certfile`` and ``keyfile``. The default vhost is ``/``, the default user ``guest``. Raises
        AddressError.
        """
        scheme, separator, rest = url.partition("://")
        if not separator or scheme.lower() not in _PORTS:
            shown = scheme[:20] if separator else "no scheme"
            raise AddressError(
                f"the AMQP URL begins with {shown!r}, not with amqp:// or amqps://; {_EXAMPLE}"
            )
        # Each host is parsed separately: from Python 3.14 on, urlsplit refuses a list of hosts with
        # one in brackets.
        place = _AFTER_PLACE.split(rest, maxsplit=1)[0]
        parts = urlsplit(f"//{rest[len(place) :]}")
        if "@" in parts.path + parts.fragment or any("@" in name for name in _names(parts.query)):
            raise AddressError(
                "the AMQP URL has an '@' behind its host; percent-encode the password: '/' is %2F, "
                "'?' is %3F, '#' is %23, '@' is %40"
            )
        login, _, hosts = place.rpartition("@")
        user, colon, password = login.partition(":")
        options = _options(parts.query)
        _check_files(options, tls=scheme.lower() == "amqps")
        return cls(
            hosts=tuple(_host(host, _PORTS[scheme.lower()]) for host in hosts.split(",")),
            user=unquote(user) or "guest",
            password=unquote(password) if colon else "guest",
            vhost=unquote(parts.path[1:]) or "/",
            tls=scheme.lower() == "amqps",
            cafile=options.get("cafile"),
            certfile=options.get("certfile"),
            keyfile=options.get("keyfile"),
            heartbeat_s=_heartbeat(options.get("heartbeat")),
        )

    def __str__(self) -> str:
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts
        )
        vhost = "" if self.vhost == "/" else f"/{self.vhost}"
        return f"amqp{'s' if self.tls else ''}://{self.user}@{hosts}{vhost}"

    def parameters(self, name: str) -> list[pika.ConnectionParameters]:
        """Return pika's parameters, one per host.

        ``name`` is shown in RabbitMQ's list of connections.

        Raises AddressError if a file of certificates or of a key cannot be read.
        """
        context = self.tls_context() if self.tls else None
        return [
            pika.ConnectionParameters(
                host=host,
                port=port,
                virtual_host=self.vhost,
                credentials=pika.PlainCredentials(self.user, self.password),
                heartbeat=self.heartbeat_s,
                socket_timeout=_CONNECT_TIMEOUT_S,
                stack_timeout=_CONNECT_TIMEOUT_S + 5,
                ssl_options=pika.SSLOptions(context, host) if context else None,
                client_properties={"connection_name": name, "product": "tiercel"},
            )
            for host, port in self.hosts
        ]

    def tls_context(self) -> ssl.SSLContext:
        """Return a new context with the certificates in the files. Raises AddressError."""
        try:
            context = ssl.create_default_context(cafile=self.cafile)
        except (OSError, ssl.SSLError) as error:
            raise AddressError(
                f"cannot read the CA certificates in {self.cafile!r}: {error}"
            ) from error
        if self.certfile:
            try:
                # OpenSSL would ask for the password of a key on the terminal.
                context.load_cert_chain(self.certfile, self.keyfile, password="")
            except (OSError, ssl.SSLError) as error:
                raise AddressError(
                    f"cannot read the client's certificate in {self.certfile!r} and its key in "
                    f"{self.keyfile or self.certfile!r}, which must have no password: {error}"
                ) from error
        return context


def _check_files(options: dict[str, str], *, tls: bool) -> None:
    given = [name for name in _OPTIONS_OF_TLS if options.get(name)]
    if given and not tls:
        raise AddressError(
            f"the AMQP URL has the option {given[0]}, but no TLS: begin it with amqps, or leave "
            "the option out"
        )
    if options.get("keyfile") and not options.get("certfile"):
        raise AddressError("the AMQP URL has a keyfile without its certfile: name both")


def _host(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host = parts.hostname
        port = parts.port
    except ValueError:
        host = None
        port = None
    if not host or port == 0:
        # The text is not shown: it may be a user and a password without the host.
        raise AddressError(f"the AMQP URL needs host:port with a port from 1 to 65535; {_EXAMPLE}")
    return host, port or default_port


def _names(query: str) -> list[str]:
    return [name for name, _ in parse_qsl(query, keep_blank_values=True)]


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise AddressError(
                f"the AMQP URL has an unknown option {name[:20]!r}; the options are "
                f"{', '.join(_OPTIONS)}"
            )
    return options


def _heartbeat(text: str | None) -> int:
    if text is None:
        return _HEARTBEAT_S
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise AddressError(
            f"heartbeat={text[:20]} in the AMQP URL must be whole seconds from 0 (none) to 65535"
        )
    return int(text)
