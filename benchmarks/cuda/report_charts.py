"""Bar charts as SVG, written by hand: no library is needed to draw them again."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_ROW, _LABEL, _BARS, _TOP = 18, 430, 420, 40


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str, mark: float | None = None) -> str:
    """One bar for each (label, value), values 0 or above; a line at ``mark``."""
    most = max((value for _, value in rows), default=1.0) or 1.0
    height = _TOP + _ROW * len(rows) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + _BARS + 90}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="15">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(rows):
        top, width = _TOP + _ROW * number, max(1.0, _BARS * value / most)
        colour = "#b0b0b0" if label.endswith("peer") else "#2f6fab"
        shown = f"{value:.0f}" if value >= 100 else f"{value:.2f}"
        lines += [
            f'<text x="{_LABEL - 8}" y="{top + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LABEL}" y="{top + 2}" width="{width:.1f}" height="{_ROW - 5}" fill="{colour}"/>',
            f'<text x="{_LABEL + width + 5:.1f}" y="{top + 12}">{shown}{escape(unit)}</text>',
        ]
    if mark is not None and rows:
        at = _LABEL + _BARS * mark / most
        lines.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{height - 10}" stroke="#c03030"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"
