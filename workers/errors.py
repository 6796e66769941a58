"""What the processes raise.

WorkersError
├── UsageError        the command line, the environment or the topology is wrong: the user must change something, exit code 2
│   └── ConfigError   a setting
└── SupersededError   another driver took over
"""


class WorkersError(Exception):
    """An error of the processes themselves."""


class UsageError(WorkersError):
    """Something that the user gave is wrong; the message says what to change."""


class SupersededError(WorkersError):
    """Another driver of the same topology has taken over."""


class ConfigError(UsageError):
    """A setting has a value that cannot be used."""
