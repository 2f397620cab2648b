"""vLLM's side of a comparison of whole answers, by its offline engine: bfloat16, greedy, prefix caching off."""

from __future__ import annotations

import importlib
import time
from typing import Any

answer_prompts = importlib.import_module("answer_prompts").answer_prompts  # this folder is the first on the path
busy_seconds = importlib.import_module("gpu_busy").busy_seconds

_MOST_POSITIONS = 4096
_SHARE_OF_MEMORY = 0.4  # our engine is on the same GPU


class _Vllm:
    """One engine; its mode (own process, or in this one) is a variable of its environment."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._vllm = importlib.import_module("vllm")
        self._engine = self._vllm.LLM(
            model=options["model"],
            dtype="bfloat16",
            skip_tokenizer_init=True,
            generation_config="vllm",
            max_model_len=_MOST_POSITIONS,
            enable_prefix_caching=False,
            gpu_memory_utilization=_SHARE_OF_MEMORY,
            seed=0,
        )
        self._vocabulary = self._engine.llm_engine.model_config.get_vocab_size()
        self.facts = {"engine": "vllm", "version": self._vllm.__version__}

    def run(self, cell: dict[str, Any]) -> float:
        """The wall clock around one call of ``generate``, each answer of exactly ``tokens`` ids."""
        began = time.perf_counter()
        made = self._generate(cell)
        seconds = time.perf_counter() - began
        if any(len(each.outputs[0].token_ids) != cell["tokens"] for each in made):
            raise RuntimeError("an answer has another length")
        return seconds

    def answers(self, cell: dict[str, Any]) -> dict[str, Any]:
        """The ids of a cell's answers, and how long the GPU was busy, None where the engine is another process."""
        ids = [list(each.outputs[0].token_ids) for each in self._generate(cell)]
        return {"ids": ids, "busy_seconds": busy_seconds(lambda: self._generate(cell))}

    def _generate(self, cell: dict[str, Any]) -> Any:
        if cell["kind"] != "answer":
            raise ValueError(f"{cell['kind']} is no cell of whole answers")
        prompts = [{"prompt_token_ids": ids} for ids in answer_prompts(cell, self._vocabulary)]
        greedy = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=cell["tokens"], ignore_eos=True, detokenize=False
        )
        return self._engine.generate(prompts, greedy, use_tqdm=False)


def open_engine(options: dict[str, Any]) -> _Vllm:
    """Opens ``options["model"]``, a folder."""
    return _Vllm(options)
