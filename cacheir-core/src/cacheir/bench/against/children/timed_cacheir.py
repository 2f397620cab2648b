"""CacheIR's own side of a comparison: steps on the executor, the way the engine submits them, and nothing else."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

_PROMPT, _PAGE_TOKENS = 16, 16


class _CacheIR:
    """One open model; tokens are greedy and sampled inside the steps."""

    def __init__(self, options: dict[str, Any]) -> None:
        from cacheir.artifact.card import CompileOptions
        from cacheir.plugins.installation import default
        from cacheir.runtime.executor import ExecutorOptions
        from cacheir.runtime.opening import OpenOptions, open_anything

        opened = open_anything(
            Path(options["model"]),
            OpenOptions(
                backend=options["backend"],
                compile=CompileOptions(max_seq=1024, max_rows=16, max_tokens=512, precise=options["precise"]),
                executor=ExecutorOptions(
                    threads=options["threads"], page_tokens=_PAGE_TOKENS, extra=_tied_threads(options["backend"])
                ),
            ),
            default(),
            lambda text: None,
        )
        self._executor = opened.model.executor
        program = opened.artifact.program
        self._vocabulary = program.spec.vocab_size if program.spec else 2
        self._groups = len(program.groups)
        self._random = random.Random(0)
        self._skipped = 0
        self.facts = {
            "engine": "cacheir",
            "backend": opened.backend_choice.name,
            "program_key": opened.artifact.card.program_key,
            "kv": [group.dtype for group in program.groups],
            "decode_bytes": _decode_bytes(program, default()),
            "weight_bytes": self._executor.memory().weights,
        }

    def said(self, cell: dict[str, Any]) -> dict[str, Any]:
        """How many bytes of the weights the steps of the last run did not read, where the executor counts them."""
        return {"skipped_bytes": self._skipped} if cell["kind"] == "decode" and self._skipped else {}

    def _saved_bytes(self) -> int:
        counts: dict[str, int] = getattr(self._executor, "counters", dict)()  # CountingExecutor is optional
        return int(counts.get("screen_saved_bytes", 0))

    def run(self, cell: dict[str, Any]) -> float:
        """A prefill of ``tokens``, or ``tokens`` decode steps of ``batch`` sequences after a short prompt."""
        if cell["kind"] == "prefill":
            return self._prefill(0, cell["tokens"], cell["tokens"])
        pages_each = -(-(_PROMPT + cell["tokens"]) // _PAGE_TOKENS)
        for slot in range(cell["batch"]):
            self._prefill(slot, _PROMPT, pages_each * _PAGE_TOKENS)
        return self._decode(cell["batch"], cell["tokens"], pages_each)

    def _prefill(self, slot: int, tokens: int, room: int) -> float:
        from cacheir.runtime.executor import Row, Step
        from cacheir.runtime.sampling import SamplingParams

        ids = tuple(self._random.randrange(self._vocabulary) for _ in range(tokens))
        greedy = SamplingParams(max_tokens=1024, ignore_eos=True)
        row = Row(slot=slot, tokens=ids, position=0, pages=self._pages(slot, room // _PAGE_TOKENS), sampling=greedy)
        began = time.perf_counter()
        output = self._executor.wait(self._executor.submit(Step(mode="prefill", rows=(row,))))
        seconds = time.perf_counter() - began
        if output.rows[0].error:
            raise RuntimeError(output.rows[0].error)
        return seconds

    def _decode(self, batch: int, steps: int, pages_each: int) -> float:
        from cacheir.runtime.executor import Row, Step

        rows = tuple(
            Row(slot=slot, tokens=(), position=_PROMPT, pages=self._pages(slot, pages_each), draw=1)
            for slot in range(batch)
        )
        saved = self._saved_bytes()
        began = time.perf_counter()
        done = self._executor.run_ahead(Step(mode="decode", rows=rows), steps, lambda outputs: None)
        seconds = time.perf_counter() - began
        self._skipped = self._saved_bytes() - saved
        if done != steps:
            raise RuntimeError(f"{done} steps were run instead of {steps}")
        return seconds

    def _pages(self, slot: int, count: int) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(slot * count, (slot + 1) * count)),) * self._groups


def open_engine(options: dict[str, Any]) -> _CacheIR:
    """Opens ``options["model"]`` on ``options["backend"]``."""
    return _CacheIR(options)


def _tied_threads(backend: str) -> dict[str, bool]:
    """The cores are this process's own: a backend that can tie its threads to them does."""
    from dataclasses import fields

    from cacheir.plugins.installation import default
    from cacheir.plugins.ref import resolve

    record = default().backends[backend].options
    return {"pin": True} if record is not None and "pin" in {field.name for field in fields(resolve(record))} else {}


def _decode_bytes(program: Any, installation: Any) -> int:
    """What one decode step of one sequence moves by the schedule's account, with 80 keys."""
    from cacheir.artifact.compatibility import cost_model
    from cacheir.bench.step_costs import StepShape, step_costs

    shape = StepShape(mode="decode", rows=1, tokens=1, keys=80)
    nodes = step_costs(program, shape, installation.kernels.by_name(), cost_model(installation))
    return int(sum(node.total.bytes for node in nodes))
