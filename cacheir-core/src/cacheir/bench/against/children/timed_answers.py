"""CacheIR's side of a comparison of whole answers on a GPU: token ids in, token ids out, one prompt or several."""

from __future__ import annotations

import importlib
import time
from typing import Any

answer_prompts = importlib.import_module("answer_prompts").answer_prompts  # this folder is the first on the path
busy_seconds = importlib.import_module("gpu_busy").busy_seconds

_MOST_ROWS, _MOST_PROMPT = 128, 2048
_MOST_TOKENS = 4096  # of a step: 32 prompts of 128 are one
# How a backend is opened whose matrices and activations --precise leaves in 16 bits.
_EXACT = {"cuda": {"cuda_dtype": "float32", "blocks": False, "decode_chain": False}}


class _Answers:
    """An open runtime; prefix hits and shared duplicates are off."""

    def __init__(self, options: dict[str, Any]) -> None:
        from cacheir.artifact.card import CompileOptions
        from cacheir.runtime.runtime import Runtime

        self._options = options
        self._runtime = Runtime(
            options["model"],
            options["backend"],
            threads=options["threads"],
            chunk_tokens=_MOST_PROMPT,
            kv_dtype=options["kv_dtype"],
            kv_tokens=_MOST_ROWS * 256,
            compile_options=CompileOptions(max_rows=_MOST_ROWS, max_tokens=_MOST_TOKENS, precise=options["precise"]),
        )
        self._engine: Any = None  # from the first batch on, as the peer's lives on between cells
        program = self._runtime.artifact.program
        assert program.spec is not None
        self._vocabulary = program.spec.vocab_size
        self.facts = {
            "engine": "cacheir",
            "backend": self._runtime.backend_choice.name,
            "program_key": self._runtime.artifact.card.program_key,
            "kv": [options["kv_dtype"] or group.dtype for group in program.groups],
            "decode_bytes": 0,
            "weight_bytes": self._runtime.memory().weights,
        }

    def run(self, cell: dict[str, Any]) -> float:
        """The wall clock around the answers of a cell, each of exactly ``tokens`` ids."""
        if cell["kind"] != "answer":
            raise ValueError(f"{cell['kind']} is no cell of whole answers")
        prompts = answer_prompts(cell, self._vocabulary)
        began = time.perf_counter()
        made = self._made(prompts, cell["tokens"])
        seconds = time.perf_counter() - began
        if [len(ids) for ids in made] != [cell["tokens"]] * len(prompts):
            raise RuntimeError("an answer has another length")
        return seconds

    def answers(self, cell: dict[str, Any]) -> dict[str, Any]:
        """The ids of a cell's answers, and how long the GPU was busy, None without one."""
        prompts = answer_prompts(cell, self._vocabulary)
        ids = self._made(prompts, cell["tokens"])
        return {"ids": ids, "busy_seconds": busy_seconds(lambda: self._made(prompts, cell["tokens"]))}

    def prompts(self, cell: dict[str, Any]) -> list[list[int]]:
        """What every engine is asked in the cell."""
        return list(answer_prompts(cell, self._vocabulary))

    def margins(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Of ``partings``, (tokens before, our id, their id): how far apart the exact logits of the two ids are.

        ``error`` is the largest of our logits after the cell's prompts beside the exact ones: those of ``--precise``,
        on a GPU with matrices in float32.
        """
        from cacheir.artifact.card import CompileOptions
        from cacheir.runtime.runtime import Runtime

        exact_options = CompileOptions(max_rows=1, max_tokens=_MOST_PROMPT, precise=True)
        backend = self._runtime.backend_choice.name
        with Runtime(
            self._options["model"],
            backend,
            threads=self._options["threads"],
            chunk_tokens=_MOST_PROMPT,
            kv_dtype="f32",
            kv_tokens=2 * _MOST_PROMPT,
            compile_options=exact_options,
            backend_options=_EXACT.get(backend, {}),
        ) as exact:
            prompts = answer_prompts(cell, self._vocabulary)[:2]
            errors = [abs(_logits(self._runtime, ids) - _logits(exact, ids)).max() for ids in prompts]
            apart = []
            for before, mine, theirs in cell["partings"]:
                logits = _logits(exact, before)
                apart.append(abs(float(logits[mine] - logits[theirs])))
        return {"error": float(max(errors)), "margins": apart}

    def _made(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        return self._one(prompts[0], tokens) if len(prompts) == 1 else self._many(prompts, tokens)

    def _one(self, prompt: list[int], tokens: int) -> list[list[int]]:
        return [list(self._runtime.generate_ids(prompt, tokens, ignore_eos=True, temperature=0.0))]

    def _many(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        from cacheir.runtime.engine.engine import Engine
        from cacheir.runtime.engine.job import Job
        from cacheir.runtime.sampling import SamplingParams

        greedy = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
        self._engine = self._engine or Engine(self._runtime.model)
        jobs = [
            Job(id=str(number), ids=tuple(ids), sampling=greedy, reuse=False, share_duplicates=False)
            for number, ids in enumerate(prompts)
        ]
        return [[token for event in events for token in event.ids] for events in self._engine.generate(jobs)]


def _logits(runtime: Any, ids: list[int]) -> Any:
    with runtime.session() as session:
        session.append(list(ids))
        return session.logits()


def open_engine(options: dict[str, Any]) -> _Answers:
    """Opens ``options["model"]`` on ``options["backend"]``."""
    return _Answers(options)
