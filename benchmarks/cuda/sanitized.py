"""Small steps for compute-sanitizer: python sanitized.py PART; PART is launches, graphs or chain.

``launches`` runs a tiny model launch by launch: ragged prompts, single rows, three rows, greedy and sampled. ``graphs``
records the same. ``chain`` is Qwen3-0.6B with few layers: the CUDA C++ kernels of one row and of several.
"""

from __future__ import annotations

import sys
import tempfile
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

LAYERS, VOCABULARY, TOKENS = 4, 4096, 6
PROMPTS = (1, 17, 37)  # tokens: less than a page, one more than one, some pages
OPTIONS: dict[str, dict[str, Any]] = {
    "launches": {"use_cuda_graph": False, "decode_chain": False},
    "graphs": {"decode_chain": False},
    "chain": {},
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
    part = sys.argv[1]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        if part == "chain":
            family, shape = SHAPES["qwen3-0.6b"]
            SHAPES["few layers"] = family, replace(shape, layers=LAYERS, vocab=VOCABULARY, positions=512)
            write_model(folder, "few layers")
        else:
            write_tiny(folder, family="qwen3")
        compiled = CompileOptions(max_rows=16, max_tokens=64)
        with CudaRuntime(
            folder, compile_options=compiled, kv_dtype="bf16", chunk_tokens=32, **OPTIONS[part]
        ) as runtime:
            spec = runtime.artifact.program.spec
            assert spec is not None
            for count in (1, 3):
                for temperature in (0.0, 0.8) if part != "chain" else (0.0,):
                    made = answers(runtime, count, spec.vocab_size, temperature)
                    assert [len(tokens) for tokens in made] == [TOKENS] * count, made
            print(part, "tokens came;", {name: n for name, n in runtime.counters().items() if n})


if __name__ == "__main__":
    main()
