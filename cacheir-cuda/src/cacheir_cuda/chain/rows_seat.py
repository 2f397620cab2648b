"""The place of the kernels for several rows in the executor: there or not, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cacheir.errors import BackendUnavailable
from cacheir.runtime.executor import Row, Sink
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir_cuda.binding import BoundLaunch, Surroundings
from cacheir_cuda.chain.launches import ChainWeights
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.chain.rows_refusal import why_not_rows
from cacheir_cuda.chain.rows_run import COUNTS, RowsChain
from cacheir_cuda.layer_plan import MainPlan
from cacheir_cuda.pool import Pool
from cacheir_cuda.prefill_graphs import greedy_tokens
from cacheir_cuda.row_stops import I32
from cacheir_cuda.under_way import UnderWay

MOST_ROWS = COUNTS[-1]


class RowsSeat:
    """Empty at first; ``load`` and ``open`` fill it where they can. ``refusal`` is "" while the kernels are there."""

    def __init__(self) -> None:
        self._rows: RowsChain | None = None
        self._chain: Chain | None = None
        self.refusal = "no program is loaded"
        self.steps = self.prompts = 0
        self.others: set[str] = set()  # why main of a step was other than the chain
        self._compared: dict[int, str] = {}  # by plan: why it is another than the chain

    def load(self, chain: Chain, weights: ChainWeights, device: torch.device) -> None:
        """Load the kernels for ``chain``."""
        self.refusal = why_not_rows(chain)
        self._compared.clear()
        if self.refusal:
            return
        try:
            self._rows, self._chain = RowsChain(chain, weights, device), chain
            self.refusal = "no KV pages are open"
        except BackendUnavailable as reason:
            self.refusal = str(reason)

    def open(self, pool: Pool, max_seq: int) -> None:
        """Take the pages of ``pool``."""
        if self._rows is None:
            return
        try:
            self._rows.open(pool, max_seq)
            self.refusal = ""
        except BackendUnavailable as reason:
            self.refusal = str(reason)

    def takes(self, count: int) -> bool:
        """Whether a greedy decode step of ``count`` rows runs here."""
        return not self.refusal and 1 < count <= MOST_ROWS

    def run(self, rows: Sequence[Row], staged: Staged, stops: I32, n: int, slots: Slots, sink: Sink) -> int:
        """``RowsChain.run``."""
        assert self._rows is not None
        self.steps += n
        return self._rows.run(rows, staged, stops, n, slots, sink)

    def begin_behind(self, rows: Sequence[Row], staged: Staged, stops: I32, n: int, prompts: UnderWay) -> UnderWay:
        """``RowsChain.begin_behind``."""
        assert self._rows is not None
        return self._rows.begin_behind(rows, staged, stops, n, prompts)

    def go_on(self, rows: Sequence[Row], n: int, slots: Slots, sink: Sink) -> int | None:
        """``RowsChain.go_on``."""
        assert self._rows is not None
        done = self._rows.go_on(rows, n, slots, sink)
        self.steps += done or 0
        return done

    def forget_begun(self) -> None:
        """``RowsChain.forget_begun``."""
        if self._rows is not None:
            self._rows.forget_begun()

    def start(self, rows: Sequence[Row], staged: Staged, slots: Slots) -> UnderWay:
        """``RowsChain.start``."""
        assert self._rows is not None
        self.steps += 1
        return self._rows.start(rows, staged, slots)

    def takes_prompt(self, rows: Sequence[Row], slots: Slots) -> bool:
        """Whether a step of prompts runs here whose main ``is_main``: few tokens, each row's greedy one or none."""
        if self.refusal or sum(len(row.tokens) or 1 for row in rows) > MOST_ROWS:
            return False
        return all(len(row.want_at) <= 1 for row in rows) and greedy_tokens(rows, slots)

    def start_prompt(self, rows: Sequence[Row], tokens: Sequence[tuple[int, ...]], slots: Slots) -> UnderWay:
        """``RowsChain.start_prompt``."""
        assert self._rows is not None
        self.prompts += 1
        return self._rows.start_prompt(rows, tokens, slots)

    def is_main(self, plan: MainPlan) -> bool:
        """Whether the kernels are there and compute what ``plan`` does, for as many rows as they take."""
        from cacheir_cuda.chain.rows_blocks import why_other

        if self.refusal or self._chain is None:
            return False
        reason = self._compared.get(id(plan))
        if reason is None:
            reason = self._compared[id(plan)] = why_other(plan, self._chain)
        if reason:
            self.others.add(reason)
        return not reason

    def main(self, plan: MainPlan, around: Surroundings, pdl: bool) -> Sequence[BoundLaunch] | None:
        """Main of a step as launches of the kernels, None where it has more rows than they take or is another."""
        from cacheir_cuda.chain.rows_blocks import rows_launches

        if around.rows > MOST_ROWS or not self.is_main(plan):
            return None
        assert self._rows is not None
        return rows_launches(plan, around, self._rows, pdl)

    def close_pages(self) -> None:
        """Let go of the graphs, which hold places of pages."""
        if self._rows is not None:
            self._rows.close_pages()
            self.refusal = "no KV pages are open"

    def counters(self) -> dict[str, int]:
        """Steps that ran here, and why others do not."""
        reasons = {self.refusal, *self.others} - {""}
        ran = {"rows_chain_steps": self.steps, "rows_chain_prompts": self.prompts}
        return {**ran, **{f"rows_chain_refused: {reason}": 1 for reason in sorted(reasons)}}

    @property
    def captures(self) -> int:
        """How many graphs were recorded."""
        return self._rows.captures if self._rows is not None else 0

    def close(self) -> None:
        """Let go of everything."""
        if self._rows is not None:
            self._rows.close()
        self._rows = self._chain = None
        self.refusal = "no program is loaded"
