"""Draws the pictures of docs/windows.md as SVG: ``python docs/pictures.py docs/images``.

The build of the site draws them, too. They are computed from the tuples and windows below, by the
rules of the page, so that a picture shows what a bolt does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

_WIDTH = 760
_LEFT = 150
_RIGHT = 20
_INK, _PALE, _LINE = "#1f2933", "#6b7785", "#c9d1d9"
_FILLS = ("#cfe3f7", "#d9ead3", "#fce8c5", "#e6dcf2", "#f6d5d5")
_LATE = "#c62828"
_MARK = "#b26a00"
_STYLE = (
    f"text{{font-size:13px;fill:{_INK}}}.pale,.late,.mark,.small{{font-size:12px}}"
    f".pale{{fill:{_PALE}}}.late{{fill:{_LATE}}}.mark{{fill:{_MARK}}}"
    ".number{font-size:11px;fill:#ffffff}"
)

# Seconds at which tuples of one key happened.
TIMES = (2, 5, 9, 14, 17, 23, 33, 35, 38, 48, 52, 57)
END = 60
LENGTH, SLIDE, GAP = 20, 10, 8
# Seconds at which tuples happened, in the order in which they came.
ARRIVALS = (3, 7, 5, 12, 9, 16, 11, 23, 18, 8, 27, 31, 22, 36, 28)
LAG, TUMBLING = 5, 10
# Numbers of tuples.
COUNTED, OF_WINDOW, PER_WINDOW = 12, 4, 2

Window = tuple[float, float]


def aligned(times: Iterable[float], length: float, slide: float) -> list[Window]:
    """Return the windows that contain a time, aligned to 0, each with its end left out."""
    found = set()
    for time in times:
        start = time // slide * slide
        while start > time - length:
            found.add((start, start + length))
            start -= slide
    return sorted(found)


def sessions(times: Iterable[float], gap: float) -> list[Window]:
    """Return the sessions of these times: each ends ``gap`` after its last one."""
    found: list[Window] = []
    for time in sorted(times):
        if found and time < found[-1][1]:
            found[-1] = (found[-1][0], time + gap)
        else:
            found.append((time, time + gap))
    return found


def watermarks(arrivals: Sequence[float], lag: float) -> list[float]:
    """Return the watermark after each arrival: the latest time so far, less ``lag``."""
    return [time - lag for time in accumulate(arrivals, max)]


def late(arrivals: Sequence[float], lag: float, length: float) -> list[bool]:
    """Tell for each arrival if its tumbling window had closed before."""
    before = [float("-inf"), *watermarks(arrivals, lag)]
    ends = [time // length * length + length for time in arrivals]
    return [mark >= end for mark, end in zip(before, ends, strict=False)]


def _text(x: float, y: float, text: str, style: str = "", at: str = "") -> str:
    anchor = f' text-anchor="{at}"' if at else ""
    look = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{look}{anchor}>{escape(text)}</text>'


def _dot(x: float, y: float, fill: str = _INK, radius: float = 4) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}"/>'


def _line(one: tuple[float, float], other: tuple[float, float], ink: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" y2="{other[1]:.1f}" '
        f'stroke="{ink}"{dashed}/>'
    )


def _box(corner: tuple[float, float], width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="3" fill="{fill}" stroke="{_PALE}"/>'
    )


def _picture(height: float, says: str, parts: Iterable[str]) -> str:
    """Return the SVG; ``says`` is for readers who do not see it."""
    size = f'viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">',
        f"<title>{escape(says)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height:g}" fill="#ffffff"/>',
        *parts,
        "</svg>",
    )
    return "\n".join(lines) + "\n"


def _across(last: float) -> Callable[[float], float]:
    """Return the scale from 0 to ``last`` over the width of a picture."""
    return lambda value: _LEFT + value * (_WIDTH - _LEFT - _RIGHT) / last


def _row(
    names: tuple[str, str],
    y: float,
    windows: Sequence[Window],
    inside: Sequence[int],
    x: Callable[[float], float],
) -> Iterable[str]:
    """Draw windows on as few levels as keep them apart; yields the parts."""
    yield _text(_LEFT - 12, y + 14, names[0], at="end")
    yield _text(_LEFT - 12, y + 30, names[1], "pale", at="end")
    free: list[float] = []
    for number, ((start, end), count) in enumerate(zip(windows, inside, strict=True)):
        level = next((one for one, at in enumerate(free) if at <= start), len(free))
        free[level : level + 1] = [end]
        left, right = max(x(start), _LEFT - 6), min(x(end), _WIDTH - 4)
        yield _box((left, y + 26 * level), right - left - 2, 22, _FILLS[number % len(_FILLS)])
        yield _text((left + right) / 2, y + 26 * level + 16, str(count), "small", at="middle")


def kinds() -> str:
    """Return the picture of windows in time over the same tuples."""
    x = _across(END + GAP)
    rows = (
        (f"tumbling({LENGTH} s)", "one after the other", aligned(TIMES, LENGTH, LENGTH)),
        (f"Sliding({LENGTH} s, {SLIDE} s)", "one every 10 s", aligned(TIMES, LENGTH, SLIDE)),
        (f"Session({GAP} s)", "until 8 s of silence", sessions(TIMES, GAP)),
    )
    parts = [_text(_LEFT - 12, 30, "tuples of one key", at="end")]
    parts += [_dot(x(time), 26) for time in TIMES]
    for second in range(0, END + 1, 10):
        parts += [_line((x(second), 40), (x(second), 206), _LINE)]
        parts += [_text(x(second), 222, f"{second} s", "pale", at="middle")]
    y = 48.0
    for name, says, windows in rows:
        inside = [sum(start <= time < end for time in TIMES) for start, end in windows]
        parts += _row((name, says), y, windows, inside, x)
        y += 64 if name.startswith("Sliding") else 48
    return _picture(232, "Tumbling, sliding and session windows over the same tuples", parts)


def by_count() -> str:
    """Return the picture of windows of tuples."""
    x = _across(COUNTED + 0.5)
    sliding = [(max(0, end - OF_WINDOW), end) for end in range(PER_WINDOW, COUNTED + 1, PER_WINDOW)]
    tumbling = [(end - OF_WINDOW, end) for end in range(OF_WINDOW, COUNTED + 1, OF_WINDOW)]
    parts = [_text(_LEFT - 12, 30, "tuples", at="end")]
    for number in range(COUNTED):
        parts += [_dot(x(number + 0.5), 26, radius=9)]
        parts += [_text(x(number + 0.5), 30, str(number + 1), "number", at="middle")]
    y = 52.0
    for name, windows in (
        (f"tumbling({OF_WINDOW})", tumbling),
        (f"Sliding({OF_WINDOW}, {PER_WINDOW})", sliding),
    ):
        inside = [int(end - start) for start, end in windows]
        parts += _row((name, "numbers of tuples"), y, windows, inside, x)
        y += 46
    return _picture(y + 14, "Windows of four tuples: tumbling, and sliding by two", parts)


def _bands(top: float, y: Callable[[float], float], right: float) -> Iterable[str]:
    """Yield the tumbling windows of the picture of late tuples, each a band."""
    for number in range(int(top // TUMBLING)):
        start, end = number * TUMBLING, (number + 1) * TUMBLING
        fill = _FILLS[number % len(_FILLS)]
        yield (
            f'<rect x="{_LEFT}" y="{y(end):.1f}" width="{right - _LEFT:.1f}" '
            f'height="{y(start) - y(end):.1f}" fill="{fill}" opacity="0.55"/>'
        )
        yield _text(_LEFT - 12, (y(start) + y(end)) / 2 + 4, f"{start} to {end} s", at="end")


def lateness() -> str:
    """Return the picture of a watermark, with the tuples that come too late."""
    top, height = 40.0, 300.0
    x, right = _across(len(ARRIVALS) + 1), float(_WIDTH - _RIGHT)

    def y(time: float) -> float:
        return 20 + height - max(time, 0) * height / top

    marks = watermarks(ARRIVALS, LAG)
    parts = list(_bands(top, y, right))
    path = [f"M {x(1):.1f} {y(marks[0]):.1f}"]
    for place, mark in enumerate(marks[1:], start=2):
        path.append(f"H {x(place):.1f} V {y(mark):.1f}")
    path.append(f"H {right:.1f}")
    parts.append(f'<path d="{" ".join(path)}" fill="none" stroke="{_MARK}" stroke-width="2"/>')
    for end in range(TUMBLING, int(max(marks)) + 1, TUMBLING):
        at = next(place for place, mark in enumerate(marks, start=1) if mark >= end)
        parts += [_line((x(at), y(end) - 6), (x(at), y(end - TUMBLING)), _MARK, "4 3")]
        parts += [_text(x(at) + 6, y(end - TUMBLING) - 6, "closes", "mark")]
    for place, (time, is_late) in enumerate(
        zip(ARRIVALS, late(ARRIVALS, LAG, TUMBLING), strict=True), start=1
    ):
        parts.append(_dot(x(place), y(time), _LATE if is_late else _INK, 5))
        if is_late:
            parts.append(_text(x(place) + 9, y(time) + 4, "late", "late"))
    parts.append(_text(right, y(marks[-1]) - 6, "watermark", "mark", at="end"))
    parts.append(_text(_LEFT - 12, 14, "happened", "pale", at="end"))
    parts.append(_text(right, height + 38, "order of arrival", "pale", at="end"))
    says = "The watermark rises with the latest tuples; a tuple whose window has closed is late"
    return _picture(height + 48, says, parts)


PICTURES = {
    "windows-kinds.svg": kinds,
    "windows-count.svg": by_count,
    "windows-late.svg": lateness,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        (folder / name).write_text(picture(), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
