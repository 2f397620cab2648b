"""The place of the decode chain in the executor: there or not, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cacheir.errors import BackendUnavailable
from cacheir.runtime.executor import Row, Sink
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir.schedule.flatten import flatten
from cacheir.schedule.program import Program
from cacheir_cuda.chain.plan_step import GREEDY, NOTE
from cacheir_cuda.chain.recognise import NoChain, recognise
from cacheir_cuda.chain.run import DecodeChain
from cacheir_cuda.options import CudaOptions
from cacheir_cuda.pool import Pool
from cacheir_cuda.residents import Residents


class ChainSeat:
    """Empty at first; ``load`` and ``open`` fill it where they can. ``refusal`` is "" while the chain is there."""

    def __init__(self) -> None:
        self._chain: DecodeChain | None = None
        self.refusal = "no program is loaded"
        self.steps = 0

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
            return
        main, head = (flatten(program, "decode", name) for name in (program.modules["decode"].main.name, GREEDY))
        try:
            self._chain = DecodeChain(recognise(program, main, head), residents, device)
            self.refusal = "no KV pages are open"
        except (NoChain, BackendUnavailable) as reason:
            self.refusal = str(reason)

    def open(self, pools: Sequence[Pool], max_seq: int) -> None:
        """Take the pages of the one pool."""
        if self._chain is None:
            return
        try:
            self._chain.open(pools[0], max_seq)
            self.refusal = ""
        except BackendUnavailable as reason:
            self.refusal = str(reason)

    def takes(self, rows: Sequence[Row]) -> bool:
        """Whether a greedy decode step of ``rows`` runs here."""
        return not self.refusal and len(rows) == 1

    def run(self, row: Row, staged: Staged, n: int, slots: Slots, sink: Sink) -> int:
        """``DecodeChain.run``."""
        assert self._chain is not None
        self.steps += n
        return self._chain.run(row, staged, n, slots, sink)

    def close_pages(self) -> None:
        """Let go of the graphs, which hold places of pages."""
        if self._chain is not None:
            self._chain.close_pages()
            self.refusal = "no KV pages are open"

    def counters(self) -> dict[str, int]:
        """Steps that ran here, and why there is no chain."""
        refused = {f"decode_chain_refused: {self.refusal}": 1} if self.refusal else {}
        return {"decode_chain_steps": self.steps, **refused}

    @property
    def captures(self) -> int:
        """How many graphs were recorded."""
        return self._chain.captures if self._chain is not None else 0

    def close(self) -> None:
        """Let go of everything."""
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
