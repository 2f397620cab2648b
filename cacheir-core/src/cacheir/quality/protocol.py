"""The text that models are compared on, cut into windows of which the second halves are scored.

A window is independent of the others. Its first half is context alone, so that every scored token has at least half a
window before it: the protocol of llama.cpp's perplexity tool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cacheir.errors import UsageError

WINDOW = 512
DEFAULT_TEXT = Path(__file__).with_name("text.txt")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """``windows`` of token ids, all of one length. ``sha256`` names the text."""

    windows: tuple[tuple[int, ...], ...]
    sha256: str

    @property
    def window(self) -> int:
        """Tokens of a window."""
        return len(self.windows[0])

    @property
    def scored(self) -> int:
        """How many tokens are predicted and counted."""
        return len(self.windows) * (self.window - self.window // 2)


def protocol(text: str, ids: Sequence[int], *, window: int = WINDOW, windows: int = 0, skip: int = 0) -> Protocol:
    """The windows of a text whose tokens are ``ids``: ``windows`` of them (0: all whole ones), after ``skip`` others.

    Raises UsageError where the text has not one window.
    """
    if window < 4:
        raise UsageError(f"a window of {window} tokens scores nothing worth a word; take at least 4")
    starts = range(skip * window, len(ids) - window + 1, window)
    cut = tuple(tuple(ids[start : start + window]) for start in starts)[: windows or None]
    if not cut:
        raise UsageError(
            f"the text has {len(ids)} tokens, which are not {skip + 1} windows of {window}",
            hint="give a longer text, or a smaller --window",
        )
    return Protocol(windows=cut, sha256=hashlib.sha256(text.encode("utf-8")).hexdigest())


def read_text(path: Path) -> str:
    """The text of a file; UsageError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the text {path} cannot be read: {error}") from error
