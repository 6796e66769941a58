"""The text that the demo counts, and an independent count, which shares no code with the
topology.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiercel.workers.errors import UsageError

_WORD = re.compile(r"\S+")
_FIRST_WORD = re.compile(r'\{"first_word": (\d+)')
# A line that begins with this makes the demo's bolt raise each time.
POISON = "\N{SKULL AND CROSSBONES} poison"


@dataclass(frozen=True)
class Text:
    """Non-blank lines, with the number of the first word of each; words are numbered over the whole
    text.
    """

    lines: Sequence[str]
    first_word: Sequence[int]
    words: int

    @classmethod
    def of(cls, lines: Sequence[str]) -> Text:
        """Number the words of the lines."""
        first_word = []
        total = 0
        for line in lines:
            first_word.append(total)
            total += len(_WORD.findall(line))
        return cls(lines, first_word, total)

    def bodies(self) -> Iterator[bytes]:
        """One JSON message per line: the sentence and the number of its first word."""
        for line, first in zip(self.lines, self.first_word, strict=True):
            yield json.dumps({"first_word": first, "sentence": line}).encode()

    def line_of(self, body: str) -> int:
        """Return the line of a message, found by the beginning of its body."""
        found = _FIRST_WORD.match(body)
        if found is None:
            raise ValueError(f"{body!r:.80} is no message of this text")
        return bisect_right(self.first_word, int(found[1])) - 1

    def length(self, line: int) -> int:
        """Number of words of a line."""
        return len(_WORD.findall(self.lines[line]))

    def counts(self, without: set[int]) -> Counter[str]:
        """Count each word of the text, leaving out the lines with these indices."""
        return Counter(
            word
            for i, line in enumerate(self.lines)
            if i not in without
            for word in _WORD.findall(line)
        )

    def unseen_lines(self, seen: bytes, without: set[int]) -> list[int]:
        """Return the lines with at least one word that is not marked in ``seen``.

        Bit n, most significant first, is word n.
        """
        missing = []
        for i, (line, first) in enumerate(zip(self.lines, self.first_word, strict=True)):
            if i not in without and not all(
                _bit(seen, first + n) for n in range(len(_WORD.findall(line)))
            ):
                missing.append(i)
        return missing


def load(path: Path | None, repeat: int) -> list[str]:
    """Return the non-blank lines of a file, ``repeat`` times over; without a file the lines of the
    Python language reference, which comes with CPython.
    """
    if path is None:
        from pydoc_data.topics import topics  # noqa: PLC0415 - 700 kB of text, wanted by the demo only

        text = "\n".join(topics[name] for name in sorted(topics))
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path} as UTF-8 text: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{path} has no lines to count; name a text file")
    return lines * repeat


def with_poison(lines: Sequence[str], count: int) -> list[str]:
    """The lines with ``count`` poison lines spread among them."""
    mixed = list(lines)
    for number in range(count):
        mixed.insert(len(mixed) * (number + 1) // (count + 1), f"{POISON} {number + 1}")
    return mixed


def _bit(bits: bytes, position: int) -> bool:
    byte = position >> 3
    return byte < len(bits) and bool(bits[byte] & (0x80 >> (position & 7)))
