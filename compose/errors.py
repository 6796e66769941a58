"""Errors that the embedded services raise.

ServiceError
├── ServiceMissingError   a program is not installed and cannot be installed from here:
                          a person must act
├── ServiceStartError     a program is there but did not come up; the message holds
│   │                     its last log lines
│   └── PortTakenError    another process has a port that was drawn for it
└── ServiceStoppedError   its start was broken off, as was asked for
"""


class ServiceError(Exception):
    """An error of the embedded services."""


class ServiceMissingError(ServiceError):
    """A program that is needed is missing; the message says exactly what to install."""


class ServiceStartError(ServiceError):
    """A server did not become ready."""


class PortTakenError(ServiceStartError):
    """Another process listens on a port that was drawn for a server."""


class ServiceStoppedError(ServiceError):
    """The start of a server was broken off."""
