"""RabbitMQ's HTTP API: what AMQP does not tell of a queue."""

from __future__ import annotations

import base64
import json
import logging
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tiercel.queues.broker.address import Address
from tiercel.queues.errors import AddressError

log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
# A queue is some 2 kB.
_LONGEST_ANSWER = 1 << 20
# RabbitMQ's largest: more than the delay queues that a queue can have.
_PAGE = 500


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Raises the redirect as an HTTPError: the login would go with the request, to whatever host
    the answer names.
    """

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


# No proxy either, whatever http_proxy says: it would read the login. RabbitMQ is asked
# directly, or not at all.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


@dataclass(frozen=True, kw_only=True, slots=True)
class Managed:
    """Management's view of a queue, some seconds old.

    It leaves out what never happened: that is 0 here.
    """

    unacked: int
    # Failed ones that wait for their back-off (RabbitMQ 4.3), and those in its delay queues.
    delayed: int
    # Messages published per second.
    in_rate: float
    # Messages that left per second: acked, or taken without an ack.
    out_rate: float


class ManagementSilentError(Exception):
    """The interface does not answer, or not as RabbitMQ's does: do without."""


def managed(management_url: str, address: Address, name: str) -> Managed | None:
    """A queue; None if there is no such queue. Raises ManagementSilentError, AddressError.

    User and password are those of ``address`` unless the URL has its own. They go to the host of
    the URL and to no other: no redirect is followed, and no proxy is asked.
    """
    found = _queue(management_url, address, name)
    if found is None:
        return None
    return _managed(found, _lying_in_delay_queues(management_url, address, name))


def policy_timeout(management_url: str | None, address: Address, name: str) -> timedelta | None:
    """The consumer timeout that a policy gives a queue; None if there is none, or none is told.

    Raises AddressError.
    """
    if management_url is None:
        return None
    try:
        found = _queue(management_url, address, name) or {}
    except ManagementSilentError:
        return None
    policy = found.get("effective_policy_definition")
    timeout_ms = policy.get("consumer-timeout") if isinstance(policy, dict) else None
    return timedelta(milliseconds=timeout_ms) if isinstance(timeout_ms, int) else None


def _lying_in_delay_queues(management_url: str, address: Address, name: str) -> int:
    """Count the messages that bolts want later: as many queues as one page has are looked at."""
    regex = quote(rf"^{re.escape(name)}\.delay\.\d+$", safe="")
    wanted = f"?page=1&page_size={_PAGE}&name={regex}&use_regex=true&columns=name,messages"
    found = _asked(_request(management_url, address, wanted)) or {}
    items = found.get("items")
    lying = [each.get("messages") for each in items or () if isinstance(each, dict)]
    return sum(count for count in lying if isinstance(count, int))


def _queue(management_url: str, address: Address, name: str) -> dict[str, Any] | None:
    return _asked(_request(management_url, address, f"/{quote(name, safe='')}"))


def _asked(request: urllib.request.Request) -> dict[str, Any] | None:
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
            found = json.loads(response.read(_LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND and _is_ours(error):
            return None
        raise _silent(error) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _silent(error) from error
    if not isinstance(found, dict):
        raise ManagementSilentError("not a queue")
    return found


def _managed(found: dict[str, Any], lying: int) -> Managed:
    stats = found.get("message_stats") or {}

    def rate(*names: str) -> float:
        return float(sum((stats.get(f"{name}_details") or {}).get("rate") or 0 for name in names))

    return Managed(
        unacked=found.get("messages_unacknowledged") or 0,
        delayed=(found.get("messages_delayed") or 0) + lying,
        in_rate=rate("publish"),
        out_rate=rate("ack", "deliver_no_ack", "get_no_ack"),
    )


def _is_ours(error: urllib.error.HTTPError) -> bool:
    """Return True if RabbitMQ itself says that the queue is missing, and not another server that it
    has no such page.
    """
    try:
        return "error" in json.load(error)
    except ValueError:
        return False


def _silent(error: Exception) -> ManagementSilentError:
    log.debug(
        "no answer from the management interface: %s",
        error,
        extra={"event": "management_unavailable"},
    )
    return ManagementSilentError(str(error))


def _request(management_url: str, address: Address, wanted: str) -> urllib.request.Request:
    parts = urlsplit(management_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError("the management URL must look like http://host:15672")
    host = parts.netloc.rpartition("@")[2]
    user = unquote(parts.username) if parts.username else address.user
    password = unquote(parts.password or "") if parts.username else address.password
    vhost = quote(address.vhost, safe="")
    path = f"{parts.path.rstrip('/')}/api/queues/{vhost}{wanted}"
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return urllib.request.Request(  # noqa: S310 - checked above
        f"{parts.scheme}://{host}{path}", headers={"Authorization": f"Basic {login}"}
    )
