"""A program on an executor with its pools open and its tokenizer at hand: what all sessions of one model share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cacheir.errors import UsageError
from cacheir.ir.types import KVType
from cacheir.models.imported import GenerationDefaults
from cacheir.quick_dataclass import dataclass
from cacheir.runtime.encode import PromptEncoder
from cacheir.runtime.executor import Executor
from cacheir.runtime.host_sampling import HostSampler
from cacheir.runtime.kv_space import KVSpace
from cacheir.runtime.no_tokenizer import NoTokenizer
from cacheir.runtime.pages import Reach, pages_for
from cacheir.runtime.request import RequestLimits
from cacheir.runtime.runner import Runner
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.steps import StepLimits
from cacheir.runtime.tokenizer import Tokenizer
from cacheir.runtime.vocabulary_mask import known_ids_mask

if TYPE_CHECKING:
    from cacheir.runtime.stats import GenerationStats
    from cacheir.schedule.program import Program

# A longer prompt runs in parts, so that other requests get a turn in between and buffers stay small.
CHUNK_TOKENS = 512
# Several sessions of a model with a short context.
LEAST_KV_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """One loaded model. ``limits.max_seq`` is what a sequence can really have, which the KV pool may limit.

    ``on_done`` is told the statistics of each answer that ends. ``make_sampler`` makes the sampler that
    an answer's parameters name. ``identity`` gives the program's key and the hash of its weights' content, by which a
    saved session is known; reading the weights may take a while.
    """

    program: Program
    executor: Executor
    runner: Runner
    tokenizer: Tokenizer
    encoder: PromptEncoder
    limits: RequestLimits
    kv_groups: tuple[KVType, ...]  # the program's, with the storage format in force
    on_done: Callable[[GenerationStats], None] = lambda stats: None
    make_sampler: Callable[[SamplingParams], HostSampler | None] = lambda params: None
    identity: Callable[[], tuple[str, str]] = lambda: ("", "")

    @property
    def generation(self) -> GenerationDefaults:
        """What the model's own files say about generating."""
        return self.program.generation


def open_model(
    program: Program,
    executor: Executor,
    tokenizer: Tokenizer | None = None,
    *,
    page_tokens: int = 16,
    kv_tokens: int = 0,
    chunk_tokens: int = CHUNK_TOKENS,
    kv_dtype: str = "",
    on_done: Callable[[GenerationStats], None] = lambda stats: None,
    make_sampler: Callable[[SamplingParams], HostSampler | None] = lambda params: None,
    identity: Callable[[], tuple[str, str]] = lambda: ("", ""),
) -> OpenModel:
    """Opens the pools of ``executor``, which has loaded ``program``, and joins the parts.

    ``kv_tokens`` is how many positions the pools hold, for all sessions together; 0 means one full context, and no
    fewer than ``LEAST_KV_TOKENS``; see ``group_pages`` for groups with a window. ``kv_dtype`` is the storage format
    that the executor was opened with, "" for the program's.
    """
    if program.schedules and not {"prefill", "decode"} <= set(program.schedules):
        raise UsageError(
            f"the program has {' and '.join(program.schedules)} but not prefill and decode, so it cannot generate",
            hint="cacheir execute runs a plain graph on arrays",
        )
    capabilities = executor.capabilities()
    if capabilities.page_tokens and page_tokens not in capabilities.page_tokens:
        allowed = ", ".join(map(str, capabilities.page_tokens))
        raise UsageError(f"the executor has no pages of {page_tokens} tokens", hint=f"it takes {allowed}")
    if page_tokens < 1 or chunk_tokens < 1 or kv_tokens < 0:
        raise UsageError(
            f"page_tokens and chunk_tokens must be at least 1 and kv_tokens at least 0, not {page_tokens}, "
            f"{chunk_tokens} and {kv_tokens}"
        )
    max_tokens = min(program.max_tokens, capabilities.max_tokens)
    step_limits = StepLimits(
        max_rows=min(program.max_rows, capabilities.max_rows),
        max_tokens=max_tokens,
        chunk_tokens=min(chunk_tokens, max_tokens),
    )
    page_counts = group_pages(program, kv_tokens, page_tokens, step_limits)
    executor.open_pools(page_counts)
    kv = KVSpace(executor, page_counts, page_tokens, [Reach(kind.window, kind.sinks) for kind in program.groups])
    capacity = kv.capacity_tokens(max_tokens)
    vocab_size = _vocab_size(program, tokenizer)
    known = tokenizer or NoTokenizer(vocab_size)
    return OpenModel(
        program=program,
        executor=executor,
        runner=Runner(
            executor,
            kv,
            step_limits,
            mask=known_ids_mask(known, vocab_size),
            rotation_switches=program.spec.rotation_switches if program.spec else (),
        ),
        tokenizer=known,
        encoder=PromptEncoder(known, program.generation),
        on_done=on_done,
        make_sampler=make_sampler,
        identity=identity,
        kv_groups=tuple(replace(kind, dtype=kv_dtype or kind.dtype) for kind in program.groups),
        limits=RequestLimits(
            max_seq=program.max_seq if capacity is None else min(program.max_seq, capacity),
            vocab_size=vocab_size,
            eos_ids=program.generation.eos_ids,
        ),
    )


def group_pages(program: Program, kv_tokens: int, page_tokens: int, limits: StepLimits) -> list[int]:
    """How many pages the pool of each KV group of ``program`` gets for ``kv_tokens`` positions.

    0 stands for one full context, and no fewer than ``LEAST_KV_TOKENS``. A group with a window needs no more pages
    than all rows of a step can hold; with 0 it gets what one sequence can hold, and no fewer than that either.
    """
    positions = kv_tokens or max(program.max_seq, LEAST_KV_TOKENS)
    counts = []
    for kind in program.groups:
        count, reach = pages_for(positions, page_tokens), Reach(kind.window, kind.sinks)
        if reach.window:
            rows = limits.max_rows if kv_tokens else 1
            resting, feeding = reach.most_pages(1, page_tokens), reach.most_pages(limits.max_tokens, page_tokens)
            count = min(count, max(pages_for(LEAST_KV_TOKENS, page_tokens), (rows - 1) * resting + feeding))
        counts.append(count)
    return counts


def _vocab_size(program: Program, tokenizer: Tokenizer | None) -> int:
    """How many ids the model has: rows of its embedding, which may be more than the tokenizer knows."""
    if program.spec is not None:
        return program.spec.vocab_size
    if tokenizer is not None:
        return tokenizer.vocab_size
    raise UsageError("the program has neither a decoder's description nor a tokenizer, so its ids are unknown")
