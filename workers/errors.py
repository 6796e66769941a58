"""Errors that the processes raise.

WorkersError
├── UsageError        the command line, the environment or the topology is wrong; the user must
                      fix it, exit code 2
│   └── ConfigError   a setting is invalid
└── RunsFailedError   several runs in a row failed at once
"""


class WorkersError(Exception):
    """Base class of the errors of the processes."""


class UsageError(WorkersError):
    """The user's input is wrong; the message says what to change."""


class RunsFailedError(WorkersError):
    """Several runs in a row failed at once; the message has the fault of the last run."""


class ConfigError(UsageError):
    """A setting has an invalid value."""
