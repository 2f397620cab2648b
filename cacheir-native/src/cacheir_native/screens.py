"""Which heads a runner screens, and the bytes of that; as cpp/core/screened_head.cpp works them out."""

from __future__ import annotations

from dataclasses import dataclass

from cacheir_native.sizes import BLOCK, PANEL_ROWS, activation_bytes, panel_bytes, pieces, rounded

_WIDER = frozenset({"f32", "f16", "bf16", "q8_0"})  # than the screen
_LEAST_SAVED = 1 << 20  # kLeastSaved
_MOST_ROWS = 4  # kMostScreenedRows


@dataclass(frozen=True, kw_only=True)
class ScreenedHead:
    """A head of ``rows`` and ``columns`` in panels of ``format``; ``int8`` where its activations are that."""

    format: str
    rows: int
    columns: int
    int8: bool

    def takes_part(self, screen: str) -> bool:
        """Whether a runner with the option ``screen`` makes one."""
        if screen == "off" or self.format not in _WIDER or self.columns % BLOCK:
            return False
        return screen == "always" or panel_bytes(self.format, self.rows, self.columns) >= self.nbytes + _LEAST_SAVED

    @property
    def nbytes(self) -> int:
        """Of the screen and the norms beside it."""
        return panel_bytes("q5_0", self.rows, self.columns) + self._panels * PANEL_ROWS * 4

    def workspace(self, threads: int) -> int:
        """Of logits, and of each worker's activations and list of panels."""
        rows = _MOST_ROWS if self.int8 else 2 * _MOST_ROWS
        worker = activation_bytes(rows, self.columns) + pieces(
            rows * self.columns * 4, rounded(self.columns) * 4, self._panels * 4
        )
        return pieces(threads * 4, rows * self._panels * PANEL_ROWS * 4) + threads * worker

    @property
    def _panels(self) -> int:
        return -(-self.rows // PANEL_ROWS)
