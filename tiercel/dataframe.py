"""RabbitMQ in PySpark, as ``format("rabbitmq")``. See docs/dataframes.md."""

from __future__ import annotations

from tiercel.frames.errors import FramesError, OptionError, ReaderGoneError, RowError
from tiercel.frames.post import fail_messages
from tiercel.frames.register import register_rabbitmq

__all__ = [
    "FramesError",
    "OptionError",
    "ReaderGoneError",
    "RowError",
    "fail_messages",
    "register_rabbitmq",
]
