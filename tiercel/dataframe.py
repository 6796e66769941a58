"""RabbitMQ in PySpark, as ``format("rabbitmq")``. See docs/dataframes.md."""

from __future__ import annotations

from tiercel.frames.errors import FramesError, OptionError, ReaderGoneError, RowError
from tiercel.frames.register import register_rabbitmq
from tiercel.frames.telling.failing import fail_messages

__all__ = [
    "FramesError",
    "OptionError",
    "ReaderGoneError",
    "RowError",
    "fail_messages",
    "register_rabbitmq",
]
