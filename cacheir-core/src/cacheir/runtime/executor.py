"""The contract between the engine and a backend: steps are data, the executor owns weights, pages and slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from cacheir.errors import UsageError
from cacheir.quick_dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from cacheir.plugins.installation import Installation
    from cacheir.runtime.sampling import SamplingParams
    from cacheir.schedule.program import Program
    from cacheir.weights.store import WeightStore

# More than any machine has cores for, and few enough to be started.
MOST_THREADS = 1024

# What a row of a step asks for, least first.
WANTS = ("nothing", "token", "logprobs", "logits", "hidden")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request's part of a step.

    ``slot`` is where the executor keeps its token, position, random counter and penalty counts. ``tokens`` are the ids
    to feed, empty for "the slot's last token" (a decode row). ``position`` is the first token's. ``pages`` is the row's
    whole page table after this step's reservations, one tuple for each KV group; page ``i`` holds the positions from
    ``i * page_tokens`` on. In a group with a window it is ``pages.FREED`` (-1) where no token of this row, or of a
    later one, sees any of those: nothing may be read there, and what a kernel gathers without asking must count for
    nothing, NaN included. ``want`` is one of ``WANTS``; ``want_at`` lists the indices into ``tokens`` whose output is
    wanted, () for the last one alone. ``length`` is how many tokens the request's sequence has, those that later steps
    feed included; 0 stands for those fed so far. A program reads it (main's ``%sequence_lengths``) where its rotation
    depends on it.
    """

    slot: int
    tokens: tuple[int, ...]
    position: int
    pages: tuple[tuple[int, ...], ...]
    want: str = "token"
    want_at: tuple[int, ...] = ()
    sampling: SamplingParams | None = None  # None keeps the slot's
    draw: int = 0  # how many tokens the request has sampled so far: the random counter
    length: int = 0
    mask: np.ndarray | None = None  # u32 [ceil(V / 32)], bit i % 32 of word i // 32 allows id i; None allows all


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the executor runs in one go: ``mode`` ``prefill`` (rows of any length) or ``decode`` (one token a row).

    ``then`` is how many decode steps of the same rows will be asked for next (``run_ahead``), unless the tokens of this
    one say otherwise; the rows' pages hold them. An executor may begin some (``Capabilities.begins_ahead``): what it
    then writes behind the rows' tokens is read by nobody who does not write it anew.
    """

    mode: str
    rows: tuple[Row, ...]
    then: int = 0


@dataclass(frozen=True, kw_only=True)
class RowOutput:
    """One row's result. ``error`` is a sentence where this row alone failed (non-finite logits, out of memory).

    ``stopped``: in a step before this one of the same ``run_ahead`` the row's answer ended, and there is no token.
    """

    slot: int
    token: int | None = None
    logits: np.ndarray | None = None  # f32 [len(want_at) or 1, V]
    hidden: np.ndarray | None = None  # f32 [len(want_at) or 1, H]
    logprobs: np.ndarray | None = None  # f32 [len(want_at) or 1, V], log softmax of the unfiltered logits
    error: str | None = None
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """The rows' results, in the order of the step's rows."""

    rows: tuple[RowOutput, ...]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an executor can do; the engine plans within it."""

    determinism: str  # "bit" (a row never depends on its neighbours, chunks or pages) or "tolerance"
    heads: tuple[str, ...]  # of WANTS
    page_tokens: tuple[int, ...]  # page sizes it takes; () for any
    kv_formats: tuple[str, ...]
    row_classes: tuple[int, ...]  # upper bounds of the row classes it selects kernels for
    max_rows: int
    max_tokens: int
    run_ahead: bool
    masks: bool
    overlaps: bool = False  # ``submit`` may return before the step is done, so that the host works meanwhile
    stops_ahead: bool = False  # ``run_ahead`` ends a few steps after a sink that asks for it
    begins_ahead: bool = False  # ``submit`` begins decode steps behind prompts (``Step.then``)
    rounding: float = 2e-3  # of a page's largest value: how far keys and values may be off that were computed otherwise
    notes: tuple[str, ...] = ()  # what a person who opens the program here should know, a sentence each


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Owned bytes, by what they hold."""

    weights: int
    kv: int
    arena: int
    workspace: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.arena + self.workspace


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """What an executor will own, before anything is loaded, and how what is resident differs from it, in bytes.

    ``loading`` comes on top of the weights while they are made of the model's files (pages of those files, copies);
    ``step`` on top of all that is owned while a step runs (arrays under no plan). ``host`` is what the executor's own
    objects and libraries take. ``untouched`` is owned, but no step writes it in which only the last token of each row
    needs a head.
    """

    use: MemoryUse
    loading: int = 0
    step: int = 0
    host: int = 0
    untouched: int = 0

    @property
    def peak(self) -> int:
        """The most resident bytes of the executor, beyond those of the imports."""
        running = self.use.total - self.untouched + self.step
        return self.host + max(self.use.weights + self.loading, running)


@dataclass(frozen=True, kw_only=True)
class CallTiming:
    """Measured time of one scheduled call, named by graph and node; ``calls`` is how often it ran in the step.

    Where an executor runs several nodes in one, ``node`` joins their names with ``+`` and ``kernel`` is the first's.
    """

    graph: str
    node: str
    kernel: str
    calls: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """How an executor is opened. ``threads`` 0 means as many as the process may use, at most ``MOST_THREADS``.

    ``extra`` are the backend's own options, fields of ``BackendSpec.options``. ``installation`` is where ops and
    kernels are looked up, None for the process's. ``carried`` is the folder of what ``BackendSpec.carries`` gave when
    the artifact was made, or of what somebody else put there.
    """

    threads: int = 0
    batch_invariant: bool = False
    kv_dtype: str = ""  # "" keeps the program's
    page_tokens: int = 16
    unfuse: tuple[str, ...] = ()  # node names to run by their decomposition
    extra: Mapping[str, Any] = field(default_factory=dict)
    installation: Installation | None = field(default=None, compare=False, repr=False)
    carried: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.threads <= MOST_THREADS:
            raise UsageError(
                f"{self.threads} threads cannot be had: at most {MOST_THREADS}",
                hint="leave it at 0 for as many as there are cores",
            )


class Ticket(Protocol):
    """A step under way; only the executor that made it looks inside."""


Sink = Callable[[Sequence[RowOutput]], "bool | None"]  # True: no further step is wanted


class CountingExecutor(Protocol):
    """What an executor may offer besides: ``counters`` says how often it did, so far, what should be rare in a step.

    The names: ``compiles`` (a kernel was built), ``captures`` (a device graph was recorded), ``graph_misses``,
    ``fallbacks`` (an op ran by its meaning), ``screen_saved_bytes`` (of weights, that steps had no need to read). A
    benchmark marks a run in which one of the first two rose as invalid.
    """

    def counters(self) -> Mapping[str, int]: ...


class ModuleExecutor(Protocol):
    """What an executor may offer besides: ``run_module`` runs main of a plain graph (the mode ``main``) on arrays.

    ``inputs`` are by name and have been checked; the outputs are fresh arrays in main's order. ``load`` is as for a
    decoder, pools are not opened.
    """

    def run_module(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]: ...


class Executor(Protocol):
    """Owns one device: its weights, its page pools, its slots. One thread calls it.

    ``load`` binds a program; ``open_pools`` takes the number of pages of each KV group; ``submit`` may return before
    the device is done, and then nothing but ``wait`` follows, which returns the step's output. A ticket that is a
    ``StepOutput`` says that the step is done. A step above the program's ``max_rows``, ``max_tokens`` or
    ``max_seq`` is a RequestError, since no buffer was planned for it. ``run_ahead`` takes up to ``n`` decode steps of
    the same rows without Python in between and reports each step's rows to ``sink``; it raises ``UsageError`` with the
    reason where a row's next step needs the host. A ``sink`` that returns True wants no further step: an executor whose
    ``Capabilities.stops_ahead`` is set reports none, others may go on. An executor that knows where answers end
    (``row_ends.ends_of``) reports a row behind its end as ``stopped``, stores nothing more for it, and is through once
    all rows are. ``copy_pages`` takes (source, target) pairs within a group. ``read_pages`` gives f32 arrays
    [pages, layers, 2, heads, page_tokens, head_dim]; ``write_pages`` takes the same.
    """

    def load(self, program: Program, weights: WeightStore) -> None: ...

    def open_pools(self, pages: Sequence[int]) -> None: ...

    def capabilities(self) -> Capabilities: ...

    def submit(self, step: Step) -> Ticket: ...

    def wait(self, ticket: Ticket) -> StepOutput: ...

    def run_ahead(self, step: Step, n: int, sink: Sink) -> int: ...

    def copy_pages(self, group: int, pairs: Sequence[tuple[int, int]]) -> None: ...

    def read_pages(self, group: int, pages: Sequence[int]) -> np.ndarray: ...

    def write_pages(self, group: int, pages: Sequence[int], data: np.ndarray) -> None: ...

    def measure(self, step: Step) -> Sequence[CallTiming]: ...

    def memory(self) -> MemoryUse: ...

    def close(self) -> None: ...
