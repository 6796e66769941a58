"""Errors that the embedded services raise.

ServiceError
├── ServiceMissingError   a program is not installed and cannot be installed from here:
                          a person must act
├── ServiceStartError     a server did not become ready; the message has its last log lines
│   └── PortTakenError    another process has a port that was drawn for it
└── ServiceStoppedError   the caller broke the start off
"""


class ServiceError(Exception):
    """An error of the embedded services."""


class ServiceMissingError(ServiceError):
    """A required program is missing; the message says what to install."""


class ServiceStartError(ServiceError):
    """A server did not become ready."""


class PortTakenError(ServiceStartError):
    """Another process listens on a port that was drawn for a server."""


class ServiceStoppedError(ServiceError):
    """The start of a server was broken off."""
