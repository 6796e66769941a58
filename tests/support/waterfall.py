"""The picture of a trace, drawn from its spans as trace viewers draw it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tests.support.otlp import Arrived

_ROW = 26
_NAMES = 330
_BARS = 620
_COLOURS = ("#2f6fab", "#c2711f", "#3f8f4f", "#8a4f9e")


def waterfall(spans: Sequence[Arrived]) -> str:
    """Return an SVG with a row per span, children below their parent, and a bar for its time."""
    known = {span.span_id for span in spans}
    children: dict[str, list[Arrived]] = {}
    for span in sorted(spans, key=lambda one: one.start_ns):
        parent = span.parent_id if span.parent_id in known else ""
        children.setdefault(parent, []).append(span)

    def rows(parent: str, depth: int) -> list[tuple[int, Arrived]]:
        found = []
        for span in children.get(parent, ()):
            found += [(depth, span), *rows(span.span_id, depth + 1)]
        return found

    first = min(span.start_ns for span in spans)
    scale = _BARS / max(1, max(span.end_ns for span in spans) - first)
    services = list(dict.fromkeys(span.service for span in spans))
    parts = []
    for number, (depth, span) in enumerate(rows("", 0)):
        y = 40 + number * _ROW
        x = _NAMES + (span.start_ns - first) * scale
        width = max(2.0, (span.end_ns - span.start_ns) * scale)
        colour = _COLOURS[services.index(span.service) % len(_COLOURS)]
        took_ms = (span.end_ns - span.start_ns) / 1e6
        at = x + width + 6 if x + width < _NAMES + _BARS - 70 else x - 6
        anchor = "start" if at > x else "end"
        parts += [
            f'<text x="{10 + 16 * depth}" y="{y + 13}">{escape(span.name)}</text>',
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" rx="2" fill="{colour}"/>',
            f'<text x="{at:.1f}" y="{y + 13}" text-anchor="{anchor}">{took_ms:.1f} ms</text>',
        ]
    legend = "".join(
        f'<rect x="{10 + 150 * at}" y="10" width="12" height="12" fill="{_COLOURS[at]}"/>'
        f'<text x="{28 + 150 * at}" y="21">{escape(service)}</text>'
        for at, service in enumerate(services)
    )
    height = 50 + _ROW * len(spans)
    width = _NAMES + _BARS + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{legend}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
