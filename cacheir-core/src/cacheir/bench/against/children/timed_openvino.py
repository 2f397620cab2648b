"""OpenVINO GenAI's side of a comparison: its pipeline reads the GGUF file itself."""

from __future__ import annotations

import importlib
import time
from typing import Any

_PROMPT = 16
_VOCABULARY = 1000  # ids that every model has


class _OpenVino:
    """One pipeline on the CPU."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._genai = importlib.import_module("openvino_genai")
        self._openvino = importlib.import_module("openvino")
        self._numpy = importlib.import_module("numpy")
        self._pipeline = self._genai.LLMPipeline(
            options["model"], "CPU", INFERENCE_NUM_THREADS=options["threads"], ENABLE_CPU_PINNING=True
        )
        self._random = self._numpy.random.default_rng(0)
        self.facts = {"engine": "openvino", "version": self._genai.__version__}

    def run(self, cell: dict[str, Any]) -> float:
        """A prefill with its first token, or the steps after it."""
        if cell["kind"] == "prefill":
            return self._generate(cell["tokens"], 1, 1)[0]
        return self._generate(_PROMPT, cell["batch"], cell["tokens"] + 1)[1]

    def _generate(self, prompt: int, batch: int, tokens: int) -> tuple[float, float]:
        """Seconds to the first token and from there to the last."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos, config.do_sample = True, False
        ids = self._random.integers(10, _VOCABULARY, (batch, prompt)).astype(self._numpy.int64)
        mask = self._numpy.ones_like(ids)
        inputs = self._genai.TokenizedInputs(self._openvino.Tensor(ids), self._openvino.Tensor(mask))
        began = time.perf_counter()
        found = self._pipeline.generate(inputs, config)
        total = time.perf_counter() - began
        if any(len(row) != tokens for row in found.tokens):
            raise RuntimeError(f"the pipeline did not give {tokens} tokens a sequence")
        first = found.perf_metrics.get_ttft().mean / 1e3
        return first, total - first


def open_engine(options: dict[str, Any]) -> _OpenVino:
    """Opens ``options["model"]``."""
    return _OpenVino(options)
