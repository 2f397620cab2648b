"""Which recorded steps run once before the first request, so that no kernel is compiled while one waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from cacheir.plugins import KernelSpec
from cacheir.schedule.capture_plan import CapturePlan
from cacheir.schedule.flatten import Launch
from cacheir.schedule.program import Program
from cacheir_cuda.decode_graphs import DecodeGraphs, why_uncapturable
from cacheir_cuda.heads import HeadRunner
from cacheir_cuda.prefill_graphs import TOKENS, PrefillGraphs, PrefillSizes, bucket_of, powers_up_to
from cacheir_cuda.staging import widths_of


def warm_decodes(
    program: Program,
    page_tokens: int,
    graphs: DecodeGraphs,
    plan: CapturePlan | None,
    heads: HeadRunner,
    main: Sequence[Launch],
    kernels: Mapping[str, KernelSpec],
) -> None:
    """Run every decode step that can be recorded, on padding: each bucket of rows, width of page tables and head."""
    if why_uncapturable(main, kernels) is not None:
        return
    with torch.no_grad():
        for head in ("head.greedy", "head.sampled"):
            if why_uncapturable(heads.launches("decode", head), kernels) is None:
                for capture in plan.captures if plan else ():
                    for width in widths_of(program, page_tokens):
                        graphs.warm(capture.rows, width, head)


def warm_prefills(program: Program, page_tokens: int, graphs: PrefillGraphs) -> None:
    """Run steps of prompts on padding."""
    with torch.no_grad():
        for sizes in prefill_sizes(program, page_tokens):
            graphs.warm(sizes)


def prefill_sizes(program: Program, page_tokens: int) -> Iterator[PrefillSizes]:
    """A step of each bucket of tokens, of one row and of all, at each width; its heads are greedy."""
    for tokens in sorted({bucket_of(count, TOKENS, program.max_tokens) for count in TOKENS}):
        for rows in sorted({1, powers_up_to(program.max_rows)[-1]}):
            for width in widths_of(program, page_tokens):
                yield PrefillSizes(tokens, rows, width, "head.greedy")
