"""Runs the decode chain: graphs of several steps, the tokens read from a ring in pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_void_p

import torch

from cacheir.errors import BackendError, BackendUnavailable
from cacheir.runtime.executor import Row, Sink
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir_cuda.chain import tiles
from cacheir_cuda.chain.behind_prompt import FIRST_STEPS, UNKNOWN, Behind
from cacheir_cuda.chain.cubins import FOLDER, load_cubin, other_folders
from cacheir_cuda.chain.driver_calls import Driver, Graph
from cacheir_cuda.chain.early_reads import checked
from cacheir_cuda.chain.launches import STATE_WORDS, STOPS_AT, ChainBuffers, ChainStep, ChainWeights, KernelLaunch
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.chain.told_steps import EMPTY, RingReader, let_others_run, tell_steps
from cacheir_cuda.pool import Pool
from cacheir_cuda.residents import Residents
from cacheir_cuda.row_stops import I32
from cacheir_cuda.under_way import UnderWay

TOKEN_AT = 2  # of the state's words: the token that a run begins with
STEPS_OF_GRAPHS = (16, 8, 4, 2, 1)  # the gap between two graphs is paid once for so many tokens


def why_no_pages(pool: Pool) -> str | None:
    """Why the chain's kernels cannot read ``pool``, in words; None where they can."""
    if pool.kind.dtype != "bf16":
        return f"KV pages are {pool.kind.dtype}, and the kernels read bf16 (kv_dtype)"
    if pool.page_tokens % tiles.GROUP_TOKENS:
        return f"pages hold {pool.page_tokens} tokens, no whole number of {tiles.GROUP_TOKENS}"
    return None


class DecodeChain:
    """Greedy decode steps of one row by the CUDA C++ kernels.

    Raises BackendUnavailable where the kernels are not built or not for this GPU, BackendError where the driver fails.
    """

    def __init__(self, chain: Chain, residents: Residents, device: torch.device) -> None:
        capability = torch.cuda.get_device_capability(device)
        image = load_cubin((capability[0], capability[1]), FOLDER, other_folders())
        self._chain, self._device = chain, device
        torch.zeros(1, device=device)  # makes the context current in this thread
        self._driver = Driver()
        self._module = self._driver.load(image)
        self.weights = ChainWeights(chain, residents)
        self._functions: dict[str, c_void_p] = {}
        self._graphs: dict[int, Graph] = {}
        self._step: ChainStep | None = None
        self._begin: KernelLaunch | None = None
        self._behind: Behind | None = None
        self._over = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def open(self, pool: Pool, max_seq: int) -> None:
        """Take the pages of ``pool``, for sequences of up to ``max_seq`` tokens. Raises BackendUnavailable."""
        self.close_pages()
        reason = why_no_pages(pool)
        if reason:
            raise BackendUnavailable(reason)
        self._buffers = ChainBuffers(self._chain, self._device, max_seq, pool.page_tokens)
        self._step = ChainStep(self._chain, self.weights, self._buffers, pool)
        self._begin = self._step.begin()
        self._host_state, self._ring = self._buffers.host_state.numpy(), self._buffers.ring.numpy()

    def run(self, row: Row, staged: Staged, stops: I32 | None, n: int, slots: Slots, sink: Sink) -> int:
        """``n`` steps of ``row``, whose first inputs are ``staged``; how many were reported to ``sink``.

        ``stops`` are its words of ``RowStops``, None for a single step.
        """
        inputs, sizes = staged.inputs, split_steps(n)
        table, words = inputs["page_table"][0], 0 if stops is None else stops[0]
        launch = self._begun(int(inputs["positions"][0]), int(inputs["tokens"][0]), table, words, sizes)
        return tell_steps(sizes, launch, self._reader(row, slots), sink)

    def begin_behind(self, row: Row, staged: Staged, stops: I32, n: int, prompt: UnderWay) -> UnderWay:
        """Begin steps of ``row`` behind ``prompt``, whose token is its first, with room for ``n`` (``behind_prompt``).

        What is returned takes the place of ``prompt``.
        """
        inputs, begun = staged.inputs, min(n, FIRST_STEPS)
        sizes, position = (begun, *split_steps(n - begun)), int(inputs["positions"][0])
        launch = self._begun(position, UNKNOWN, inputs["page_table"][0], stops[0], sizes, prompt.tokens_at)
        launch(begun)
        self._behind = Behind((row,), n, begun, launch)
        return self._behind.told(prompt)

    def go_on(self, row: Row, n: int, slots: Slots, sink: Sink) -> int | None:
        """``run`` where it begins with the steps that were begun behind a prompt; None where it does not."""
        behind, self._behind = self._behind, None
        if behind is None or not behind.precedes((row,), n):
            return None
        sizes = (behind.begun, *split_steps(min(n, behind.steps) - behind.begun))
        return tell_steps(sizes, behind.launches(), self._reader(row, slots), sink)

    def forget_begun(self) -> None:
        """``go_on`` finds nothing: another step came in between."""
        self._behind = None

    def graph(self, steps: int) -> Graph:
        """The graph of ``steps`` steps, recorded when it is first asked for."""
        if steps not in self._graphs:
            assert self._step is not None, "open comes first"
            stream = torch.cuda.Stream(self._device).cuda_stream  # type: ignore[no-untyped-call]
            launches = checked([launch for number in range(steps) for launch in self._step.step(number, steps)])
            for launch in launches:
                self._function(launch)
            self._driver.begin_capture(stream)
            for launch in launches:
                self._launch(launch, stream)
            self._graphs[steps] = self._driver.end_capture(stream)
        return self._graphs[steps]

    @property
    def captures(self) -> int:
        """How many graphs were recorded."""
        return len(self._graphs)

    def close_pages(self) -> None:
        """Let go of the graphs and of what is bound to pages."""
        self._over.synchronize()
        self._driver.destroy(list(self._graphs.values()))
        self._graphs.clear()
        self._step = self._begin = self._behind = None

    def close(self) -> None:
        """Let go of everything."""
        self.close_pages()
        self._driver.unload(self._module)

    def _begun(
        self, position: int, token: int, table: I32 | Sequence[int], stops: I32 | int, sizes: Sequence[int], at: int = 0
    ) -> Callable[[int], None]:
        """The state and the first row of a run on the device's queue, and what launches a graph of so many steps.

        Where the token is not known, ``at`` is where the device finds it. The graphs of ``sizes`` are there before
        anything is launched.
        """
        self._behind = None
        host, stream = self._host_state, torch.cuda.current_stream(self._device)
        for steps in sizes:
            self.graph(steps)
        self._over.synchronize()  # whatever became of the run before, its ring and state are free from here on
        host[0], host[1], host[2] = position, 0, token
        host[STOPS_AT:STATE_WORDS] = stops
        host[STATE_WORDS : STATE_WORDS + len(table)] = table
        self._buffers.state.copy_(self._buffers.host_state, non_blocking=True)
        if at:
            self._driver.copy(self._buffers.state.data_ptr() + 4 * TOKEN_AT, at, 4, stream.cuda_stream)
        self._ring[: sum(sizes)] = EMPTY
        assert self._begin is not None, "open comes first"
        self._launch(self._begin, stream.cuda_stream)

        def launch(steps: int) -> None:
            self._driver.replay(self.graph(steps), stream.cuda_stream)
            self._over.record(stream)

        return launch

    def _reader(self, row: Row, slots: Slots) -> RingReader:
        return RingReader(self._ring[:, None], (row,), slots, self._check_running)

    def _check_running(self, number: int) -> None:
        """Raise BackendError where the device is through and token ``number`` is not there."""
        let_others_run()
        over: bool = self._over.query()  # type: ignore[no-untyped-call]
        if over and self._ring[number] == EMPTY:
            raise BackendError(f"the decode chain ended without token {number} of its run")

    def _launch(self, launch: KernelLaunch, stream: int) -> None:
        self._driver.launch(
            self._function(launch), launch.blocks, launch.threads, launch.shared_bytes, stream, launch.arguments
        )

    def _function(self, launch: KernelLaunch) -> c_void_p:
        if launch.kernel not in self._functions:
            self._functions[launch.kernel] = self._driver.function(self._module, launch.kernel, launch.shared_bytes)
        return self._functions[launch.kernel]


def split_steps(n: int, sizes: Sequence[int] = STEPS_OF_GRAPHS) -> list[int]:
    """``n`` as the fewest graph sizes, the largest first."""
    made: list[int] = []
    for size in sizes:
        made += [size] * ((n - sum(made)) // size)
    return made
