"""Counts words in memory, and reports their number when asked to: a bolt of Storm's multilang
protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import storm


class CountBolt(storm.BasicBolt):  # type: ignore[misc] # storm.py is not typed
    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._counts: Counter[str] = Counter()
        self._task = context["taskid"]

    def process(self, tup: storm.Tuple) -> None:
        [value] = tup.values
        if tup.stream == "report":
            Path(value, f"counted-{self._task}").write_text(str(self._counts.total()))
        else:
            self._counts[value] += 1


if __name__ == "__main__":
    CountBolt().run()
