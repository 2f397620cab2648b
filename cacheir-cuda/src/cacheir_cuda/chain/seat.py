"""The place of the decode chain in the executor: there or not, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from cacheir.errors import BackendUnavailable
from cacheir.runtime.executor import Row, Sink
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir.schedule.flatten import flatten
from cacheir.schedule.program import Program
from cacheir_cuda.chain.plan_step import GREEDY, NOTE
from cacheir_cuda.chain.recognise import NoChain, recognise
from cacheir_cuda.chain.rows_seat import RowsSeat
from cacheir_cuda.chain.run import DecodeChain
from cacheir_cuda.decode_graphs import one_step
from cacheir_cuda.heads import is_greedy
from cacheir_cuda.options import CudaOptions
from cacheir_cuda.pool import Pool
from cacheir_cuda.residents import Residents
from cacheir_cuda.row_stops import I32
from cacheir_cuda.under_way import Begun, UnderWay


class ChainSeat:
    """Empty at first; ``load`` and ``open`` fill it where they can. ``refusal`` is "" while the chain is there.

    ``rows`` are the kernels for several rows.
    """

    def __init__(self) -> None:
        self._chain: DecodeChain | None = None
        self.rows = RowsSeat()
        self.refusal = "no program is loaded"
        self.steps = self.went_on = 0

    def load(
        self,
        program: Program,
        residents: Residents,
        device: torch.device,
        options: CudaOptions,
        invariant: bool = False,
    ) -> None:
        """Make the chain of the program's greedy decode step, its weights packed and resident."""
        self.refusal = why_no_chain(program, device, options)
        if invariant:
            self.refusal = "it sums in another order than steps of several rows (--batch-invariant)"
        if self.refusal:
            self.rows.refusal = self.refusal
            return
        main, head = (flatten(program, "decode", name) for name in (program.modules["decode"].main.name, GREEDY))
        try:
            chain = recognise(program, main, head)
            self._chain = DecodeChain(chain, residents, device)
            self.refusal = "no KV pages are open"
        except (NoChain, BackendUnavailable) as reason:
            self.refusal = self.rows.refusal = str(reason)
            return
        self.rows.load(chain, self._chain.weights, device)

    def open(self, pools: Sequence[Pool], max_seq: int) -> None:
        """Take the pages of the one pool."""
        if self._chain is None:
            return
        try:
            self._chain.open(pools[0], max_seq)
            self.refusal = ""
        except BackendUnavailable as reason:
            self.refusal = str(reason)
        self.rows.open(pools[0], max_seq)

    def takes(self, rows: Sequence[Row], slots: Slots) -> bool:
        """Whether a decode step of ``rows`` runs here: greedy ones, as many as there are kernels for."""
        fits = not self.refusal if len(rows) == 1 else self.rows.takes(len(rows))
        return fits and all(is_greedy(row, slots) for row in rows)

    def run(self, rows: Sequence[Row], staged: Staged, stops: I32, n: int, slots: Slots, sink: Sink) -> int:
        """``n`` steps of ``rows``, which end at ``stops`` (``RowStops.words``); how many were reported to ``sink``."""
        if len(rows) > 1:
            return self.rows.run(rows, staged, stops, n, slots, sink)
        assert self._chain is not None
        self.steps += n
        return self._chain.run(rows[0], staged, stops, n, slots, sink)

    def begin_behind(self, rows: Sequence[Row], staged: Staged, stops: I32, n: int, prompts: UnderWay) -> UnderWay:
        """``DecodeChain.begin_behind``, for rows that it ``takes``."""
        if len(rows) > 1:
            return self.rows.begin_behind(rows, staged, stops, n, prompts)
        assert self._chain is not None
        return self._chain.begin_behind(rows[0], staged, stops, n, prompts)

    def go_on(self, rows: Sequence[Row], n: int, slots: Slots, sink: Sink) -> int | None:
        """``run`` where it begins with steps that were begun behind the prompts of ``rows``, else None."""
        if not self.takes(rows, slots):
            return None
        if len(rows) > 1:
            done = self.rows.go_on(rows, n, slots, sink)
        else:
            assert self._chain is not None
            done = self._chain.go_on(rows[0], n, slots, sink)
            self.steps += done or 0
        self.went_on += done is not None
        return done

    def forget_begun(self) -> None:
        """No run goes on with steps that were begun behind prompts: another step has the kernels' buffers, or pages."""
        if self._chain is not None:
            self._chain.forget_begun()
        self.rows.forget_begun()

    def start(self, rows: Sequence[Row], staged: Staged, slots: Slots) -> Begun:
        """One step of ``rows``, on the device's queue where there are several."""
        if len(rows) > 1:
            return self.rows.start(rows, staged, slots)
        assert self._chain is not None
        self.steps += 1
        return one_step(partial(self._chain.run, rows[0], staged, None, 1, slots))

    def close_pages(self) -> None:
        """Let go of the graphs, which hold places of pages."""
        if self._chain is not None:
            self._chain.close_pages()
            self.refusal = "no KV pages are open"
        self.rows.close_pages()

    def counters(self) -> dict[str, int]:
        """Steps that ran here, and why there is no chain."""
        refused = {f"decode_chain_refused: {self.refusal}": 1} if self.refusal else {}
        began = {"began_behind_prompts": self.went_on} if self.went_on else {}
        return {"decode_chain_steps": self.steps, **began, **refused, **self.rows.counters()}

    @property
    def captures(self) -> int:
        """How many graphs were recorded."""
        return (self._chain.captures if self._chain is not None else 0) + self.rows.captures

    def close(self) -> None:
        """Let go of everything."""
        self.rows.close()
        if self._chain is not None:
            self._chain.close()
            self._chain = None
        self.refusal = "no program is loaded"


def why_no_chain(program: Program, device: torch.device, options: CudaOptions) -> str:
    """Why no chain may be made here, whatever the shapes; "" where one may."""
    note = program.plan_notes.get(NOTE)
    if not isinstance(note, dict) or "kernels" not in note:
        return str(note["refused"]) if isinstance(note, dict) else "the program was compiled without a plan for it"
    if device.type != "cuda":
        return "the device is the processor"
    if not options.use_cuda_graph:
        return "graphs are switched off"
    if not options.decode_chain:
        return "it is switched off"
    if options.cuda_dtype != "bfloat16":
        return f"matrices are held as {options.cuda_dtype}, and the kernels read bfloat16"
    return ""
