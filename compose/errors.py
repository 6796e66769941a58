"""Errors that the embedded services raise.

ServiceError
├── ServiceMissingError   a program is missing, and apt cannot install it: a person must act
├── ServiceStartError     a server did not become ready; the message has its last log lines
│   └── PortTakenError    another process took the port drawn for the server
└── ServiceStoppedError   the caller aborted the start
"""


class ServiceError(Exception):
    """Base class of the errors of embedded services."""


class ServiceMissingError(ServiceError):
    """A required program is missing; the message says what to install."""


class ServiceStartError(ServiceError):
    """A server did not become ready."""


class PortTakenError(ServiceStartError):
    """Another process listens on the port drawn for a server."""


class ServiceStoppedError(ServiceError):
    """The start of a server was aborted."""
