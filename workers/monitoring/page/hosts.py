"""The names under which the monitor answers. Pure.

A web page of a stranger can have its own name resolve to this machine (DNS rebinding) and read what
is shown here, as if it were one site. Its browser then names the stranger's host, which is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tiercel.workers.errors import UsageError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_NAME = r"\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?"
_HOST = re.compile(rf"({_NAME})(?::\d{{1,5}})?", re.IGNORECASE)
_ORIGIN = re.compile(rf"https?://(({_NAME})(?::\d{{1,5}})?)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class AllowedHosts:
    """Names under which the page answers.

    Loopback names, those that the operator gave, and the address that a connection was made to.
    """

    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str]) -> AllowedHosts:
        """Take names from the command line. Raises UsageError for what is no host."""
        return cls(given=frozenset(_checked(name) for name in names))

    def admit(self, host: str, local_address: str) -> bool:
        """Return whether a request may name this ``Host`` over a connection to ``local_address``.

        The address itself needs no name service, so no stranger's page can have it as its name.
        """
        name = _name_in(_HOST.fullmatch(host))
        return name is not None and name in LOOPBACK | self.given | {
            local_address.lower().removeprefix("::ffff:")
        }

    def admit_origin(self, origin: str, host: str) -> bool:
        """Return True if a page of ``origin`` may talk to us as ``host``.

        Our own page, and no other.

        Behind a proxy that changes the host, our own page has one of the given names.
        """
        found = _ORIGIN.fullmatch(origin)
        if found is None:
            return False
        return (
            found[1].lower() == host.lower()
            or found[2].strip("[]").lower() in self.given - LOOPBACK
        )


def _checked(name: str) -> str:
    found = _HOST.fullmatch(name) or _HOST.fullmatch(f"[{name}]")
    if found is None or (found[0] != found[1]):
        raise UsageError(
            f"--allowed-host {name}: write a host name or address, without scheme and port"
        )
    return found[1].strip("[]").lower()


def _name_in(found: re.Match[str] | None) -> str | None:
    return found[1].strip("[]").lower() if found else None
