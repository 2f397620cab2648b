"""Small steps for compute-sanitizer: python sanitized.py PART; PART is launches, graphs or a named shape.

``launches`` runs a tiny model launch by launch: ragged prompts, single rows, three rows, greedy and sampled. ``graphs``
records the same. A shape of ``random_models`` runs with few layers: its CUDA C++ kernels of one row, of short prompts,
and of each number of rows that has kernels of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from random_models import SHAPES, write_model

from cacheir import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams
from cacheir_cuda.runtime import CudaRuntime
from cacheir_importers.tiny import write_tiny

LAYERS, VOCABULARY, TOKENS = 4, 4096, 4  # fewer layers the chains refuse
PROMPTS = (1, 17, 37)  # tokens: less than a page, one more than one, some pages
OPTIONS: dict[str, dict[str, Any]] = {
    "launches": {"use_cuda_graph": False, "decode_chain": False},
    "graphs": {"decode_chain": False},
}


def answers(runtime: CudaRuntime, count: int, vocabulary: int, temperature: float) -> list[list[int]]:
    """The tokens of ``count`` requests that run together."""
    chance = np.random.default_rng(3)
    engine = Engine(runtime.model)
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=temperature, seed=5, top_k=9)
    drawn = [tuple(int(x) for x in chance.integers(3, vocabulary, PROMPTS[n % 3])) for n in range(count)]
    jobs = [Job(id=str(n), ids=ids, sampling=sampling, reuse=False) for n, ids in enumerate(drawn)]
    made = [[token for event in one for token in event.ids] for one in engine.generate(jobs)]
    engine.close()
    return made


def main() -> None:
    """The part that is named; prints how many tokens came, and which kernels ran."""
    part, began = sys.argv[1], time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        if part in SHAPES:
            family, shape = SHAPES[part]
            SHAPES["few layers"] = family, replace(shape, layers=LAYERS, vocab=VOCABULARY, positions=512)
            write_model(folder, "few layers")
        else:
            write_tiny(folder, family="qwen3")
        compiled = CompileOptions(max_rows=32, max_tokens=64)
        with CudaRuntime(
            folder, compile_options=compiled, kv_dtype="bf16", chunk_tokens=32, kv_tokens=4096, **OPTIONS.get(part, {})
        ) as runtime:
            spec = runtime.artifact.program.spec
            assert spec is not None
            for count in (1, 3) if part in OPTIONS else (1, 3, 12, 20):
                for temperature in (0.0, 0.8) if part in OPTIONS else (0.0,):
                    made = answers(runtime, count, spec.vocab_size, temperature)
                    assert [len(tokens) for tokens in made] == [TOKENS] * count, made
                    print(f"[{time.perf_counter() - began:.0f} s] {count} rows, temperature {temperature}", flush=True)
            refused = [name for name in runtime.counters() if name.startswith("decode_chain_refused")]
            assert part in OPTIONS or not refused, refused
            print(part, "tokens came;", {name: n for name, n in runtime.counters().items() if n})


if __name__ == "__main__":
    main()
