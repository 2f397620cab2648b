"""Records of the runtime: backends, samplers, policies, logits processors, grammars and tool parsers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cacheir.plugins.markers import PROVISIONAL, STABLE
from cacheir.plugins.record import check_fields, record
from cacheir.plugins.ref import Lazy

if TYPE_CHECKING:
    from pathlib import Path

    from cacheir.runtime.executor import Executor, ExecutorOptions, MemoryForecast
    from cacheir.schedule.program import Program


@record(level=PROVISIONAL)
class BackendSpec:
    """Something that can run a program.

    ``probe()`` gives None where it can work here, else the reason; it is quick and does not import torch.
    ``plan_steps`` are functions from plan to plan that the backend adds after core's own. ``row_classes`` are upper
    bounds of the row counts for which it wants kernels chosen apart: ``(1, 8, 64)`` means 1, 2-8, 9-64, above.

    ``memory(program, options, pages)`` foretells what the executor will own with ``pages`` KV pages in each group; it
    reads no weight and opens no device. ``rates()`` measures what only the backend can of its device, for ``cacheir
    profile --calibrate``: name -> number, the unit in the name (``h2d_bytes_per_s``). ``carries()`` gives files, by
    name, that an artifact with its weights takes along; the executor finds them in ``ExecutorOptions.carried``, and
    must not believe them. ``receives(folder)`` is told of them when the artifact is read, before any kernel is asked
    whether it can run here.
    """

    name: str  # "cpu", "cuda"
    summary: str
    targets: tuple[str, ...]  # kernel targets it can call, best first
    executor: Lazy[Callable[[ExecutorOptions], Executor]]
    probe: Lazy[Callable[[], str | None]]
    row_classes: tuple[int, ...] = ()
    plan_steps: tuple[Lazy[Callable[..., Any]], ...] = ()
    capture_rows: tuple[int, ...] = ()  # row counts of decode for which it records device graphs, () for none
    instruction_set: Lazy[Callable[[], str]] | None = None  # "avx512": part of the program key
    # How programs that may round keep keys and values where nobody says; None for f32, which --precise and models whose
    # weights are all f32 always have.
    kv_dtype: Lazy[Callable[[], str]] | None = None
    # How kernels that have ``weight_bytes`` are given their matrices under ``ExecutorOptions.extra``: "bf16", "f16" or
    # "f32"; None for as the model stores them. ``cacheir bisect`` allows logits to be apart by what that rounds.
    matrix_dtype: Lazy[Callable[[Mapping[str, Any]], str]] | None = None
    memory: Lazy[Callable[[Program, ExecutorOptions, Sequence[int]], MemoryForecast]] | None = None
    rates: Lazy[Callable[[], Mapping[str, float]]] | None = None
    # A frozen dataclass of what ExecutorOptions.extra may hold, whose ``__post_init__`` refuses values by UsageError.
    options: Lazy[type] | None = None
    carries: Lazy[Callable[[], Mapping[str, bytes]]] | None = None
    receives: Lazy[Callable[[Path], object]] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.targets:
            raise ValueError(f"backend {self.name!r} names no target, so no kernel is ever chosen for it")
        if any(low >= high for low, high in zip((0, *self.row_classes), self.row_classes)):
            raise ValueError(f"backend {self.name!r}: row_classes must rise from 1 on, not {self.row_classes}")
        if any(low >= high for low, high in zip((0, *self.capture_rows), self.capture_rows)):
            raise ValueError(f"backend {self.name!r}: capture_rows must rise from 1 on, not {self.capture_rows}")


@record(level=STABLE)
class SamplerSpec:
    """A way to pick tokens, for requests whose ``sampler`` names it. ``factory(params)`` is called once an answer.

    ``params`` is the request's ``SamplingParams`` with its seed set. The factory gives a function from logits f32
    [B, V], -inf where a token may not be taken, to one id for each row. It is called once for each token, on the host.
    """

    name: str
    summary: str
    factory: Lazy[Callable[..., Any]]

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=PROVISIONAL)
class PolicySpec:
    """An order of scheduling. ``factory() -> policy``, which sees immutable views of requests, never the allocator."""

    name: str
    summary: str
    factory: Lazy[Callable[..., Any]]

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=PROVISIONAL)
class LogitsProcessorSpec:
    """A change of one request's logits on the host before its token is picked.

    ``factory(SamplingParams) -> fn(ids so far, logits f32 [V]) -> logits [V]``, made once for each answer. -inf bars a
    token.
    """

    name: str
    summary: str
    factory: Lazy[Callable[..., Any]]

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=PROVISIONAL)
class GrammarSpec:
    """A language that output can be held to.

    ``compile(text, tokenizer, *, vocab_size, eos_ids)`` gives a function that makes a ``runtime.grammar.TokenMatcher``
    for each answer. It raises ``RequestError``, with the place, for what it could not enforce.
    """

    name: str  # "json-schema", "regex"
    summary: str
    compile: Lazy[Callable[..., Any]]

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=PROVISIONAL)
class ToolParserSpec:
    """A reader of tool calls in a model's output. ``factory() -> parser`` for each answer, fed with text as it comes.

    ``push(text)`` and, at the end, ``finish()`` give ``(content, deltas)``: text that is no call, and pieces of calls,
    each with ``index``, ``name`` (with a call's first piece, else None) and ``arguments``, a piece of JSON text.
    """

    name: str
    summary: str
    factory: Lazy[Callable[..., Any]]

    def __post_init__(self) -> None:
        check_fields(self)
