"""Errors that the processes raise.

WorkersError
├── UsageError        the command line, the environment or the topology is wrong: the user must
                      change something, exit code 2
│   └── ConfigError   a setting
└── RunsFailedError   run after run failed at once
"""


class WorkersError(Exception):
    """An error of the processes themselves."""


class UsageError(WorkersError):
    """The user's input is wrong; the message says what to change."""


class RunsFailedError(WorkersError):
    """Run after run of the topology failed at once; the message has the fault of the last run."""


class ConfigError(UsageError):
    """A setting has an invalid value."""
