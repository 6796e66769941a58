"""Logging in Spark's Python workers: as the driver was told, with the bolt task that logs."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field

from tiercel.spark_jobs.logs.formatters import JsonFormatter, TextFormatter, hush_libraries
from tiercel.spark_jobs.logs.relay import RelayHandler
from tiercel.spark_jobs.logs.speaking import Speaking

_NAME = "executor"


@dataclass(frozen=True, kw_only=True)
class WorkerLogs:
    """Level and form of the log of a run's Python workers; it travels with the run."""

    # debug, info, warning or error.
    level: str = "info"
    # text or json.
    form: str = "text"
    # Where the workers write to the driver's stderr, as in local mode: the driver takes their
    # records into its own log. None: they write lines to the stderr of their executor.
    mark: str | None = field(default=None, repr=False)

    def set_up(self) -> None:
        """Set up logging in this process; replaces an earlier set-up."""
        handler = RelayHandler(self.mark) if self.mark else self._own()
        handler.addFilter(Speaking())
        logging.basicConfig(level=self.level.upper(), handlers=[handler], force=True)
        logging.captureWarnings(capture=True)
        hush_libraries()

    def _own(self) -> logging.Handler:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter(_NAME) if self.form == "json" else TextFormatter(_NAME))
        return handler
