"""Splits a sentence into words: a bolt of Storm's multilang protocol."""

from __future__ import annotations

import storm


class SplitBolt(storm.BasicBolt):  # type: ignore[misc] # storm.py is not typed
    def process(self, tup: storm.Tuple) -> None:
        for word in tup.values[0].split():
            storm.emit([word])


if __name__ == "__main__":
    SplitBolt().run()
