"""RabbitMQ's HTTP API: facts about queues that AMQP lacks; and delay queues, which policies listed
there may delete too early.

A message stays in a delay queue for a time, then RabbitMQ moves it back into its work queue. There
is one queue per delay, because RabbitMQ expires messages only at the head of a queue: with mixed
delays a short one would wait behind a long one. See docs/decisions/retry-later-by-queues.md.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import AUTO_DELETE, DURABLE, TYPE, dead_lettering_to
from tiercel.queues.errors import AddressError
from tiercel.queues.limits import HELD_LATER_S
from tiercel.queues.retry import BrokerLimit

_SHORTEST_MS = 100
_NAME_BYTES = 255
log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
# The answer has about 2 kB per queue.
_LONGEST_ANSWER = 1 << 20
# RabbitMQ's largest page: more than the delay queues that a queue can have.
_PAGE = 500
_LEVELS = ("policies", "operator-policies")
_ALARMS = {"mem_alarm": "memory", "disk_free_alarm": "disk"}
# The settings of policies that are not numbers.
_TEXTS = ("dead-letter-exchange", "overflow")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Raises a redirect as an HTTPError: following it would send the login to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class ManagementSilentError(Exception):
    """The interface does not answer, or not as RabbitMQ does: continue without it."""


def managed(management_url: str, address: Address, name: str) -> dict[str, Any]:
    """Return the fields of ``QueueDepth`` that AMQP lacks, some seconds old; none if the queue is
    missing. Raises ManagementSilentError, AddressError.

    User and password are those of ``address`` unless the URL has its own. They go to the host of
    the URL and to no other: no redirect is followed, and no proxy is used.
    """
    found = _queue(management_url, address, name)
    if found is None:
        return {}
    stats = found.get("message_stats") or {}

    def rate(*names: str) -> float:
        return float(sum((stats.get(f"{name}_details") or {}).get("rate") or 0 for name in names))

    # The answer leaves out the counts of events that have not happened yet.
    return {
        "unacked": found.get("messages_unacknowledged") or 0,
        "delayed": (found.get("messages_delayed") or 0)
        + _lying_in_delay_queues(management_url, address, name),
        "in_rate": rate("publish"),
        "out_rate": rate("ack", "deliver_no_ack", "get_no_ack"),
    }


def read_alarms(management_url: str, address: Address) -> list[str]:
    """Return the alarms that make RabbitMQ refuse messages now: ``memory``, ``disk``.

    Raises ManagementSilentError, also if the user lacks the tag ``monitoring``, and AddressError.
    """
    columns = ",".join(_ALARMS)
    nodes = _asked(management_url, address, f"nodes?columns={columns}", list) or []
    found = [node for node in nodes if isinstance(node, dict)]
    return [alarm for flag, alarm in _ALARMS.items() if any(node.get(flag) for node in found)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One setting that a policy gives a queue."""

    value: Any
    policy: str


class Policies:
    """The policies of a virtual host, as far as RabbitMQ reveals them."""

    def __init__(self, *levels: Sequence[Mapping[str, Any]]) -> None:
        """``levels`` are the policies and the operator's policies, as the HTTP API lists them: one
        of each applies to a queue, that with the highest priority whose pattern matches its name.
        """
        self._levels = levels

    @property
    def told(self) -> bool:
        """True if they are known, including the operator's; there may be none."""
        return len(self._levels) == len(_LEVELS)

    def rule(self, queue: str, key: str, kind: str = "quorum") -> Rule | None:
        """Return the setting for a queue of this type; the smaller number if two policies set it.

        AMQP cannot return it.
        """
        rules = [
            Rule(value=policy["definition"][key], policy=str(policy.get("name")))
            for level in self._levels
            if (policy := _matching(level, queue, kind))
            and isinstance(policy["definition"].get(key), str if key in _TEXTS else int)
        ]
        numbers = [rule for rule in rules if isinstance(rule.value, int)]
        return min(numbers, key=lambda rule: rule.value) if numbers else next(iter(rules), None)


def read_policies(management_url: str | None, address: Address) -> Policies:
    """Return the policies; none if there is no interface, or it does not reveal them."""
    if management_url is None:
        return Policies()
    levels = []
    for kind in _LEVELS:
        try:
            found = _asked(management_url, address, _inside(address, kind), list)
        except (ManagementSilentError, AddressError):
            break
        levels.append([each for each in found or () if _is_policy(each)])
    return Policies(*levels)


def told_arguments(management_url: str | None, address: Address, name: str) -> Any:
    """Return a queue's arguments as ``read_arguments`` does, for a user to whom AMQP refuses them;
    None: unknown.
    """
    if management_url is None:
        return None
    try:
        found = _queue(management_url, address, name) or {}
    except (ManagementSilentError, AddressError):
        return None
    arguments, kind = found.get("arguments"), found.get("type")
    if not isinstance(arguments, dict) or not isinstance(kind, str):
        return None
    properties = {each: bool(found.get(each)) for each in (DURABLE, AUTO_DELETE)}
    return {**arguments, **properties, TYPE: kind}


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """The server behind the HTTP API."""

    # Name of its cluster, which AMQP tells too.
    cluster: str
    # Names of the nodes that have a memory or disk alarm, so that RabbitMQ takes no messages.
    alarmed: tuple[str, ...]
    # Its clock, to the second; None: not told.
    clock: datetime | None


def look_at_interface(management_url: str, address: Address) -> Interface:
    """Return the server behind the HTTP API. Raises ManagementSilentError, AddressError."""
    found, date = _answered(management_url, address, "overview", dict)
    nodes = _asked(management_url, address, "nodes", list)
    return Interface(
        cluster=str((found or {}).get("cluster_name", "")),
        alarmed=tuple(
            str(node.get("name"))
            for node in nodes or ()
            if isinstance(node, dict) and (node.get("mem_alarm") or node.get("disk_free_alarm"))
        ),
        clock=parsedate_to_datetime(date) if date else None,
    )


def _is_policy(each: Any) -> bool:
    return (
        isinstance(each, dict)
        and isinstance(each.get("pattern"), str)
        and isinstance(each.get("definition"), dict)
        and isinstance(each.get("priority", 0), int)
    )


def _matching(
    level: Sequence[Mapping[str, Any]], queue: str, kind: str
) -> Mapping[str, Any] | None:
    applying = ("all", "queues", f"{kind}_queues")
    matching = [
        policy
        for policy in level
        if policy.get("apply-to", "all") in applying and _is_in(policy["pattern"], queue)
    ]
    return max(matching, key=lambda policy: policy.get("priority", 0), default=None)


def _is_in(pattern: str, queue: str) -> bool:
    try:
        return re.search(pattern, queue) is not None
    except re.error:  # Erlang accepts a few patterns that Python does not
        return False


def _lying_in_delay_queues(management_url: str, address: Address, name: str) -> int:
    """Count the messages that bolts postponed, in the delay queues on one page."""
    regex = quote(rf"^{re.escape(name)}\.delay\.\d+$", safe="")
    wanted = f"?page=1&page_size={_PAGE}&name={regex}&use_regex=true&columns=name,messages"
    found = _asked(management_url, address, _inside(address, "queues", wanted)) or {}
    items = found.get("items")
    lying = [each.get("messages") for each in items or () if isinstance(each, dict)]
    return sum(count for count in lying if isinstance(count, int))


def _queue(management_url: str, address: Address, name: str) -> dict[str, Any] | None:
    path = _inside(address, "queues", f"/{quote(name, safe='')}")
    found: dict[str, Any] | None = _asked(management_url, address, path)
    return found


def _inside(address: Address, kind: str, wanted: str = "") -> str:
    """Return the path of the things of this kind in the virtual host."""
    return f"{kind}/{quote(address.vhost, safe='')}{wanted}"


def _asked(management_url: str, address: Address, path: str, kind: type[Any] = dict) -> Any:
    return _answered(management_url, address, path, kind)[0]


def _answered(management_url: str, address: Address, path: str, kind: type[Any]) -> tuple[Any, str]:
    """Return the answer, None if RabbitMQ has none, and the date that came with it."""
    request = _request(management_url, address, path)
    try:
        with _opener(request, address).open(request, timeout=_TIMEOUT_S) as response:
            found = json.loads(response.read(_LONGEST_ANSWER))
            date = response.headers.get("Date") or ""
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND and _is_ours(error):
            return None, ""
        raise _silent(error, request) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _silent(error, request) from error
    if not isinstance(found, kind):
        raise _silent(ValueError("another answer"), request)
    return found, date


def _is_ours(error: urllib.error.HTTPError) -> bool:
    """Return True if RabbitMQ itself reports the queue as missing, not another server a missing
    page.
    """
    try:
        return "error" in json.load(error)
    except ValueError:
        return False


def _silent(error: Exception, request: urllib.request.Request) -> ManagementSilentError:
    log.debug(
        "no answer from the management interface: %s",
        error,
        extra={"event": "management_unavailable"},
    )
    return ManagementSilentError(f"RabbitMQ's HTTP API at {request.host} {_meaning(error)}")


def _meaning(error: Exception) -> str:
    """Say why there is no answer, and what to do."""
    if isinstance(error, urllib.error.HTTPError):
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return (
                "refuses the login: check user and password in the management address, and give "
                "the user the tag monitoring"
            )
        return (
            f"answers {error.code}: name the address at which RabbitMQ itself serves it, such as "
            "http://host:15672"
        )
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"has a certificate that is not trusted ({reason.verify_message.rstrip('.')}): name "
            "its authority's file as ?cafile= of an amqps address or in SSL_CERT_FILE, correct "
            "the host name, or renew the certificate if it has expired"
        )
    if isinstance(reason, ssl.SSLError):
        return f"has no TLS connection for us ({reason.reason}): check http or https, and the port"
    if isinstance(reason, OSError):
        return (
            f"cannot be reached ({reason.strerror or reason}): check the management address, and "
            "enable the plugin rabbitmq_management"
        )
    return "does not answer as RabbitMQ does: check host and port of the management address"


def _opener(request: urllib.request.Request, address: Address) -> urllib.request.OpenerDirector:
    context = None
    if request.type == "https":
        context = address.tls_context()
        # The interface may be behind another server than RabbitMQ's own listeners.
        context.load_default_certs()
    # No proxy either, even if http_proxy is set: it would see the login. Requests go directly to
    # RabbitMQ, or not at all.
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _NoRedirects,
        urllib.request.HTTPSHandler(context=context),
    )


def _request(management_url: str, address: Address, path: str) -> urllib.request.Request:
    parts = urlsplit(management_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError("the management URL must look like http://host:15672")
    host = parts.netloc.rpartition("@")[2]
    user = unquote(parts.username) if parts.username else address.user
    password = unquote(parts.password or "") if parts.username else address.password
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return urllib.request.Request(  # noqa: S310 - checked above
        f"{parts.scheme}://{host}{parts.path.rstrip('/')}/api/{path}",
        headers={"Authorization": f"Basic {login}"},
    )


def delay_ms(seconds: float) -> int:
    """Round up to two digits, at least 100 ms: 90 lengths for each power of ten, and so few queues.

    Up to ten seconds it rounds to 100 ms, up to a hundred to one second; never by more than a
    tenth.
    """
    wanted = max(_SHORTEST_MS, math.ceil(round(seconds * 1000, 3)))
    unit: int = max(_SHORTEST_MS, 10 ** (len(str(wanted)) - 2))
    return -(-wanted // unit) * unit


def delay_queue(queue: str, milliseconds: int) -> str:
    """Return the name of the queue in which messages of ``queue`` stay for this long."""
    end = f".delay.{milliseconds}"
    room = _NAME_BYTES - len(end)
    name = queue.encode()
    if len(name) > room:
        digest = blake2b(name, digest_size=8).hexdigest()
        queue = f"{name[: room - 17].decode('utf-8', 'ignore')}~{digest}"
    return queue + end


def delay_arguments(queue: str, milliseconds: int) -> dict[str, Any]:
    """Return the arguments of a delay queue.

    It has no ``x-expires``: in a quorum queue that counts from the declaration, even if messages
    were published since, and deletes the messages too.
    """
    return {**dead_lettering_to(queue), "x-message-ttl": milliseconds}


def ends_too_early(policies: Policies, queue: str, milliseconds: int) -> Rule | None:
    """Return the policy that makes a delay queue lose a message, or return it too early.

    A delay queue has no consumer, so any ``expires`` finally deletes it with its messages: in a
    quorum queue that counts from the declaration. An ``x-expires`` would not help, as RabbitMQ
    takes the smaller of the two.
    """
    name = delay_queue(queue, milliseconds)
    if (expires := policies.rule(name, "expires")) is not None:
        return expires
    ttl = policies.rule(name, "message-ttl")
    return ttl if ttl is not None and ttl.value < milliseconds else None


def delays_end(policies: Policies, queue: str) -> str:
    """Return one line about a policy that ends the delay queues of a queue too early, with advice;
    empty: there is none.
    """
    early = ends_too_early(policies, queue, delay_ms(HELD_LATER_S))
    if early is None:
        return ""
    return (
        f"policy {early.policy!r} ends the delay queues of {queue} too early: messages that a bolt "
        f"wants later wait in a worker, for {HELD_LATER_S / 60:.0f} min at most; leave "
        f"{queue}.delay.* out of its pattern"
    )


def losses(name: str, arguments: Mapping[str, Any], policies: Policies) -> str:
    """Return one line about the messages of a queue that RabbitMQ may delete, with advice; empty:
    none.
    """
    kind = arguments.get(TYPE, "quorum")

    def setting(key: str) -> tuple[Any, str] | None:
        """Return the value, the smaller of two numbers, and where it is set."""
        own, rule = arguments.get(f"x-{key}"), policies.rule(name, key, kind)
        if rule is None or (own is not None and (not isinstance(own, int) or own <= rule.value)):
            return None if own is None else (own, f"x-{key}")
        return rule.value, f"{key} of policy {rule.policy!r}"

    found = []
    if arguments.get(DURABLE) is False:
        found.append("a restart of RabbitMQ deletes it: declare it durable")
    if expires := setting("expires"):
        found.append(
            f"it is deleted after {expires[0] / 1000:g} s without a consumer: remove {expires[1]}"
        )
    if setting("dead-letter-exchange") is None:
        if ttl := setting("message-ttl"):
            found.append(
                f"messages are deleted after {ttl[0] / 1000:g} s ({ttl[1]}): set a dead-letter "
                "exchange"
            )
        rejects = str((setting("overflow") or ("",))[0]).startswith("reject-publish")
        for key, unit in (("max-length", "messages"), ("max-length-bytes", "bytes")):
            if not rejects and (most := setting(key)):
                found.append(
                    f"the oldest are deleted above {most[0]:,} {unit} ({most[1]}): set a "
                    "dead-letter exchange, or x-overflow to reject-publish"
                )
    return f"queue {name} may lose messages: {'; '.join(found)}" if found else ""


def policy_timeout(queue: str, policies: Policies) -> timedelta:
    """Return the consumer timeout that a policy sets for a queue; 0: none does."""
    rule = policies.rule(queue, "consumer-timeout")
    return timedelta(milliseconds=0 if rule is None else rule.value)


def policy_limit(
    name: str, limit: BrokerLimit, arguments: Mapping[str, Any], policies: Policies
) -> tuple[BrokerLimit, str]:
    """Return the limit of a queue under the policies, and one line about one that lowers it, with
    advice; empty: none does.
    """
    rule = policies.rule(name, "delivery-limit")
    own = math.inf if limit.returns is None else limit.returns
    lower = rule if rule is not None and limit.counts and 0 <= rule.value < own else None
    returns = limit.returns if lower is None else lower.value
    key = "dead-letter-exchange"
    kept = arguments.get(f"x-{key}") is not None or policies.rule(name, key) is not None
    found = replace(limit, returns=returns, deletes=returns is not None and not kept)
    if lower is None or found.returns_are_free:
        return found, ""
    return found, (
        f"RabbitMQ {'deletes' if found.deletes else 'dead-letters'} messages of {name} that come "
        f"back more than {returns} times, for lost connections too: leave the queue out of the "
        f"pattern of policy {lower.policy!r}, or remove its delivery-limit"
    )
