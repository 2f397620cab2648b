"""What was built without a GPU, on one: python untried.py OUT.json MODEL [ROW...]; MODEL is a folder or a family.

Rows: ``kernel OP=NAME`` (each adapter and opt-in kernel, forced: error of its logits beside float32, time of a prompt
and of a token), ``dtype NAME``, ``kv NAME``, ``invariant`` (bits, and what they cost), ``warm_up``, ``memory``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report_rows import ReportRows

from cacheir import CompileOptions
from cacheir.plugins import resolve
from cacheir.plugins.installation import default
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.executor import ExecutorOptions
from cacheir.runtime.sampling import SamplingParams
from cacheir_cuda.options import PAGED_DECODE_VARIABLE
from cacheir_cuda.runtime import CudaRuntime
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

FORCED = (
    "fused_rmsnorm_qkv_rope=cuda.cpp.fused_rmsnorm_qkv_rope",
    "paged_attention_decode=cuda.cpp.paged_attention_decode_batched",
    "paged_attention_decode=cuda.cpp.paged_attention_decode_reduced",
    "linear=cuda.cpp.linear",
    "fused_swiglu=cuda.cpp.fused_swiglu",
    "rms_norm=cuda.cpp.rms_norm",
    "paged_attention_prefill=cuda.torch.paged_attention_prefill_sdpa",
    "paged_attention_prefill=cuda.adapter.flash_attention_prefill",
    "paged_attention_prefill=cuda.adapter.flash_attention_vllm_prefill",
    "paged_attention_prefill=cuda.adapter.flashinfer_prefill",
    "paged_attention_decode=cuda.adapter.flash_attention_vllm_decode",
    "paged_attention_decode=cuda.adapter.flashinfer_batch_decode",
    "paged_attention_decode=cuda.adapter.flashinfer_single_decode",
    "linear=cuda.triton.matmul",
)
TOKENS = 32
SMALL = TinyShape(hidden=512, heads=4, kv_heads=2, head_dim=128, feed_forward=1024)  # heads that every library takes


def opened(folder: Path, *, kernels: Mapping[str, str] | None = None, **options: Any) -> CudaRuntime:
    """A model for 16 rows, pages in bfloat16 unless said otherwise."""
    options = {"kv_dtype": "bf16", "chunk_tokens": 512, **options}
    compiled = CompileOptions(max_rows=16, max_tokens=512, kernels=dict(kernels or {}))
    return CudaRuntime(folder, compile_options=compiled, **options)


def prompt_of(runtime: CudaRuntime, length: int, seed: int = 5) -> list[int]:
    spec = runtime.artifact.program.spec
    assert spec is not None
    most = min(length, runtime.artifact.card.max_seq - TOKENS - 8)
    return [int(x) for x in np.random.default_rng(seed).integers(3, spec.vocab_size, most)]


def logits(runtime: CudaRuntime, prompt: list[int]) -> np.ndarray:
    """After a prompt, in one piece and then by single tokens: f32 [5, V]."""
    made = []
    with runtime.session() as session:
        for part in (prompt[:-4], *([token] for token in prompt[-4:])):
            session.append(part)
            made.append(session.logits())
    return np.array(made)


@cache
def exact_logits(folder: Path) -> tuple[list[int], np.ndarray]:
    """A prompt and its logits in float32, launch by launch."""
    experiment = os.environ.pop(PAGED_DECODE_VARIABLE, None)  # its kernel reads pages of 16 bits alone
    try:
        with opened(folder, cuda_dtype="float32", kv_dtype="f32", blocks=False, decode_chain=False) as exact:
            prompt = prompt_of(exact, 700)
            return prompt, logits(exact, prompt)
    finally:
        if experiment is not None:
            os.environ[PAGED_DECODE_VARIABLE] = experiment


def row(folder: Path, **options: Any) -> dict[str, Any]:
    """Error beside float32, and milliseconds of a prompt's first token and of each further one."""
    prompt, expected = exact_logits(folder)
    with opened(folder, **options) as runtime:
        found = logits(runtime, prompt)
        first, further = [], []
        for sample in range(7):
            fresh = prompt_of(runtime, 512, sample)
            stamps = [time.perf_counter()]
            for _ in runtime.generate_ids(fresh, TOKENS, ignore_eos=True, temperature=0.0):
                stamps.append(time.perf_counter())
            first.append(1e3 * (stamps[1] - stamps[0]))
            further.append(1e3 * (stamps[-1] - stamps[1]) / (TOKENS - 1))
        return {
            "relative_error": [float(e) for e in np.abs(found - expected).max(axis=1) / np.abs(expected).max()],
            "first_ms": statistics.median(first[2:]), "further_ms": statistics.median(further[2:]),
            "first_samples_ms": first, "further_samples_ms": further,
            "kernels": sorted({k for s in runtime.artifact.program.schedules.values() for k in s.kernels}),
            "counters": dict(runtime.counters()),
        }  # fmt: skip


def invariant(folder: Path) -> dict[str, Any]:
    """Whether answers at 1, 4, 8 and 16 rows and in chunks equal those alone, and what it costs."""
    with opened(folder, batch_invariant=True) as runtime:
        prompts = [prompt_of(runtime, 40 + 13 * number, number) for number in range(16)]
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)

        def answers(count: int) -> list[list[int]]:
            engine = Engine(runtime.model)
            chosen = enumerate(prompts[:count])
            jobs = [Job(id=str(n), ids=tuple(ids), sampling=params, reuse=False) for n, ids in chosen]
            made = [[token for event in one for token in event.ids] for one in engine.generate(jobs)]
            engine.close()
            return made

        alone = [list(runtime.generate_ids(ids, TOKENS, ignore_eos=True)) for ids in prompts]
        whole = logits(runtime, prompts[0])
        equal = {str(count): answers(count) == alone[:count] for count in (1, 4, 8, 16)}
        same = bool(np.array_equal(logits(runtime, prompts[0]), whole))
    with opened(folder, batch_invariant=True, chunk_tokens=16) as runtime:
        chunks = bool(np.array_equal(logits(runtime, prompts[0]), whole))
    return {"equal_by_rows": equal, "again": same, "chunks": chunks, "times": row(folder, batch_invariant=True)}


def warm_up(folder: Path) -> dict[str, Any]:
    """How long the warm-up takes, and whether a kernel is compiled after it."""
    began = time.perf_counter()
    with opened(folder, jit_after_warmup="error") as runtime:
        opened_s = time.perf_counter() - began
        for length in (3, 17, 130, 500):
            list(runtime.generate_ids(prompt_of(runtime, length), TOKENS, ignore_eos=True))
        return {"open_s": opened_s, "counters": dict(runtime.counters())}


def memory(folder: Path) -> dict[str, Any]:
    """What was foretold, what the executor says, and what torch holds."""
    with opened(folder) as runtime:
        executor, program = runtime.model.executor, runtime.artifact.program
        pages = [pool.pages for pool in executor._pools]
        options = ExecutorOptions(kv_dtype="bf16", extra=executor._options.extra)
        spec = default().backends["cuda"]
        assert spec.memory is not None
        foretold = resolve(spec.memory)(program, options, pages)
        held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        return {"foretold": vars(foretold.use), "says": vars(executor.memory()), "torch": held}


def main() -> None:
    """Every row, or those that are named."""
    out, model, wanted = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    rows = ReportRows(out, wanted)
    rows.made["model"] = Path(model).name
    with tempfile.TemporaryDirectory() as place:
        folder = Path(model)
        if not folder.exists():
            folder = Path(place) / model
            write_tiny(folder, family=model, shape=SMALL)
        for text in FORCED:  # first what runs nowhere else, so that a limit of time takes the rest
            op, _, name = text.partition("=")
            rows.keep(f"kernel {text}", lambda op=op, name=name: row(folder, kernels={op: name}))  # type: ignore[misc]
        rows.keep("default", lambda: row(folder))
        rows.keep("dtype float16", lambda: row(folder, cuda_dtype="float16"))
        for kind in ("int8", "fp8"):
            rows.keep(f"kv {kind}", lambda kind=kind: row(folder, kv_dtype=kind))  # type: ignore[misc]
        rows.keep("invariant", lambda: invariant(folder))
        rows.keep("warm_up", lambda: warm_up(folder))
        rows.keep("memory", lambda: memory(folder))


if __name__ == "__main__":
    main()
