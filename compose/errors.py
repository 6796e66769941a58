"""Errors that the embedded services raise.

ServiceError
├── ServiceMissingError   a program is not installed and cannot be installed from here:
                          a person must act
└── ServiceStartError     a program is there but did not come up; the message holds
                          its last log lines
"""


class ServiceError(Exception):
    """An error of the embedded services."""


class ServiceMissingError(ServiceError):
    """A program that is needed is missing; the message says exactly what to install."""


class ServiceStartError(ServiceError):
    """A server did not become ready."""
