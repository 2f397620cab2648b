"""Runs steps of several rows by the CUDA C++ kernels: greedy ones as graphs of several steps, others' layers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from cacheir.errors import BackendError, BackendUnavailable
from cacheir.runtime.executor import Row, Sink
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir_cuda.chain.behind_prompt import FIRST_STEPS, Behind
from cacheir_cuda.chain.driver_calls import Graph
from cacheir_cuda.chain.early_reads import checked
from cacheir_cuda.chain.kernel_module import KernelModule
from cacheir_cuda.chain.launches import ChainWeights, KernelLaunch
from cacheir_cuda.chain.prompt_inputs import PromptPositions
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsInputs, RowsStep
from cacheir_cuda.chain.rows_prompts import RowsPrompts
from cacheir_cuda.chain.run import split_steps, why_no_pages
from cacheir_cuda.chain.told_steps import EMPTY, RingReader, let_others_run, tell_steps
from cacheir_cuda.main_inputs import MainInputs
from cacheir_cuda.pool import Pool
from cacheir_cuda.row_stops import I32, STOP_WORDS
from cacheir_cuda.under_way import UnderWay

SOURCE = "rows_chain"
COUNTS = (2, 4, 8, 16, 32)  # rows of the recorded graphs; a step of fewer is filled up
STEPS_OF_GRAPHS = (8, 4, 2, 1)
FREE_ROWS = {"slots": -1}  # rows beyond those of a step are at position 0 of page 0, their token is kept nowhere


class RowsChain:
    """Steps of 2 to 32 rows.

    Raises BackendUnavailable where the kernels are not built or not for this GPU, BackendError where the driver fails.
    """

    def __init__(self, chain: Chain, weights: ChainWeights, device: torch.device) -> None:
        self._chain, self._weights, self._device = chain, weights, device
        self._module = KernelModule(device, SOURCE)
        self._recorded: dict[int, _Recorded] = {}
        self._step: RowsStep | None = None
        self._buffers: RowsBuffers | None = None
        self._over = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._prompts: RowsPrompts | None = None
        self._behind: tuple[Behind, _Recorded] | None = None
        self._captures = 0

    def open(self, pool: Pool, max_seq: int) -> None:
        """Take the pages of ``pool``, for sequences of up to ``max_seq`` tokens. Raises BackendUnavailable."""
        self.close_pages()
        reason = why_no_pages(pool)
        if reason:
            raise BackendUnavailable(reason)
        self._buffers = RowsBuffers(self._chain, self._device, max_seq)
        self._step = RowsStep(self._chain, self._weights, self._buffers, pool)
        positions = PromptPositions(max_seq, pool.page_tokens)
        self._table_width, self._max_seq = positions.table_width, max_seq
        self._prompts = RowsPrompts(self._step, self._module, positions, self._device)

    def run(self, rows: Sequence[Row], staged: Staged, stops: I32, n: int, slots: Slots, sink: Sink) -> int:
        """``n`` greedy steps of ``rows``, whose first inputs are ``staged``; how many were reported to ``sink``.

        ``stops`` are their words of ``RowStops``.
        """
        sizes = rising(n)
        recorded, launch = self._begun({**staged.inputs, "stops": stops}, sizes)
        return tell_steps(sizes, launch, self._reader(recorded, rows, slots), sink)

    def begin_behind(self, rows: Sequence[Row], staged: Staged, stops: I32, n: int, prompts: UnderWay) -> UnderWay:
        """As ``DecodeChain.begin_behind``."""
        begun = min(n, FIRST_STEPS)
        sizes = _behind_sizes(begun, n)
        recorded, launch = self._begun({**staged.inputs, "stops": stops}, sizes, prompts.tokens_at)
        launch(begun)
        behind = Behind(rows, n, begun, launch)
        self._behind = behind, recorded
        return behind.told(prompts)

    def go_on(self, rows: Sequence[Row], n: int, slots: Slots, sink: Sink) -> int | None:
        """As ``DecodeChain.go_on``."""
        begun, self._behind = self._behind, None
        if begun is None or not begun[0].precedes(rows, n):
            return None
        behind, recorded = begun
        sizes = _behind_sizes(behind.begun, min(n, behind.steps))
        return tell_steps(sizes, behind.launches(), self._reader(recorded, rows, slots), sink)

    def forget_begun(self) -> None:
        """As ``DecodeChain.forget_begun``. Prompts and main of other steps write the same buffers."""
        self._behind = None

    def start(self, rows: Sequence[Row], staged: Staged, slots: Slots) -> UnderWay:
        """One greedy step on the device's queue."""
        recorded, launch = self._begun(staged.inputs, (1,))
        launch(1)
        return UnderWay(partial(self._reader(recorded, rows, slots), 0))

    def start_prompt(self, rows: Sequence[Row], tokens: Sequence[tuple[int, ...]], slots: Slots) -> UnderWay:
        """One step of prompts on the device's queue; see ``RowsPrompts``."""
        assert self._prompts is not None, "open comes first"
        return self._prompts.start(rows, tokens, slots)

    def layers(self, inputs: RowsInputs) -> tuple[Sequence[Callable[[], None]], RowsBuffers]:
        """Calls for the embedding and the kernels of each layer, in order, and where the rows are after them."""
        assert self._step is not None and self._buffers is not None, "open comes first"

        def call(launches: list[KernelLaunch]) -> Callable[[], None]:
            return lambda: self._module.launch(launches)

        made = list(self._step.layers(inputs))
        each = len(made) // len(self._chain.layers)
        parts = [made[i : i + each] for i in range(0, len(made), each)]
        return [call([self._step.begin(inputs)]), *map(call, parts)], self._buffers

    @property
    def captures(self) -> int:
        """How many graphs were recorded."""
        return self._captures + (self._prompts.captures if self._prompts is not None else 0)

    def close_pages(self) -> None:
        """Let go of the graphs and of what is bound to pages."""
        self._over.synchronize()
        for recorded in self._recorded.values():
            self._module.driver.destroy(list(recorded.graphs.values()))
        self._recorded.clear()
        if self._prompts is not None:
            self._captures += self._prompts.captures
            self._prompts.close()
        self._step = self._buffers = self._prompts = self._behind = None

    def close(self) -> None:
        """Let go of everything."""
        self.close_pages()
        self._module.close()

    def _begun(
        self, given: Mapping[str, I32], sizes: Sequence[int], tokens_at: int = 0
    ) -> tuple[_Recorded, Callable[[int], None]]:
        """The inputs ``given`` and the first row of a run on the queue, and what launches a graph of so many steps.

        Where the tokens are not known, ``tokens_at`` is where the device finds them. The graphs of ``sizes`` are there
        before anything is launched.
        """
        assert self._step is not None, "open comes first"
        self._behind = None
        count = next(size for size in COUNTS if len(given["positions"]) <= size)
        if count not in self._recorded:
            made = self._recorded[count] = _Recorded(count, self._table_width, self._max_seq, self._device)
            made.begin = [self._step.begin(made.rows)]
        self._over.synchronize()  # whatever became of the run before, its ring and inputs are free from here on
        recorded, stream = self._recorded[count], torch.cuda.current_stream(self._device)
        graphs = {steps: self._graph(recorded, steps) for steps in sizes}
        recorded.inputs.fill_up(given, FREE_ROWS)
        if tokens_at:
            to, nbytes = recorded.rows.tokens.data_ptr(), 4 * len(given["positions"])
            self._module.driver.copy(to, tokens_at, nbytes, stream.cuda_stream)
        recorded.ring[: sum(sizes)] = EMPTY
        self._module.launch(recorded.begin, stream.cuda_stream)

        def launch(steps: int) -> None:
            self._module.driver.replay(graphs[steps], stream.cuda_stream)
            self._over.record(stream)

        return recorded, launch

    def _graph(self, recorded: _Recorded, steps: int) -> Graph:
        """The graph of ``steps`` steps, recorded when it is first asked for."""
        if steps not in recorded.graphs:
            assert self._step is not None
            launches: list[KernelLaunch] = []
            for number in range(steps):
                launches += self._step.layers(recorded.rows, number)
                launches.append(self._step.head(recorded.count))
                given = recorded.inputs.tensors
                launches.append(
                    self._step.advance(recorded.rows, recorded.tokens, given["produced"], number, steps, given["stops"])
                )
            recorded.graphs[steps] = self._module.record(checked(launches))
            self._captures += 1
        return recorded.graphs[steps]

    def _reader(self, recorded: _Recorded, rows: Sequence[Row], slots: Slots) -> RingReader:
        return RingReader(recorded.ring, rows, slots, partial(self._check_running, recorded, len(rows)))

    def _check_running(self, recorded: _Recorded, count: int, number: int) -> None:
        """Raise BackendError where the device is through and tokens of step ``number`` are not there."""
        let_others_run()
        over: bool = self._over.query()  # type: ignore[no-untyped-call]
        if over and (recorded.ring[number, :count] == EMPTY).any():
            raise BackendError(f"the chain of {count} rows ended without the tokens of step {number}")


class _Recorded:
    """The inputs of steps of ``count`` rows, the ring of their tokens in pinned memory, the graphs by steps."""

    def __init__(self, count: int, table_width: int, most_steps: int, device: torch.device) -> None:
        names = ("tokens", "positions", "slots", "produced")
        shapes: dict[str, tuple[int, ...]] = {
            "stops": (count, STOP_WORDS),  # first: the kernel reads 16 bytes at a time
            **dict.fromkeys(names, (count,)),
            "page_table": (count, table_width),
        }
        self.count = count
        self.inputs = MainInputs(shapes, device)
        given = self.inputs.tensors
        self.rows = RowsInputs(given["tokens"], given["positions"], given["slots"], given["page_table"])
        tokens = torch.zeros((most_steps, count), dtype=torch.int32)
        self.tokens = tokens.pin_memory() if device.type == "cuda" else tokens
        self.ring: I32 = self.tokens.numpy()
        self.graphs: dict[int, Graph] = {}
        self.begin: list[KernelLaunch] = []


def _behind_sizes(begun: int, n: int) -> tuple[int, ...]:
    """``n`` steps whose first ``begun`` are on the queue: the device has work, so the others may be large."""
    return (begun, *split_steps(n - begun, STEPS_OF_GRAPHS))


def rising(n: int) -> list[int]:
    """``n`` as graph sizes, the least first: a small graph is soon launched, and the device works on it meanwhile."""
    return sorted([*split_steps(n - 1, STEPS_OF_GRAPHS), 1])
