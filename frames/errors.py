"""Errors of the data frames.

FramesError
├── OptionError      an option or a schema that cannot be used
├── RowError         a row that cannot be a message
└── ReaderGoneError  the query that read a message has ended
"""


class FramesError(Exception):
    """An error of the format "rabbitmq"."""


class OptionError(FramesError, ValueError):
    """An option or the schema cannot be used; the message names it and the valid values."""


class RowError(FramesError, ValueError):
    """A row cannot be published as a message."""


class ReaderGoneError(FramesError):
    """The query that read a message has ended: the message is back in its queue."""
