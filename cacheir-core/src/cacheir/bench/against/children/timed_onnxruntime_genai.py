"""ONNX Runtime GenAI's side of a comparison, on a folder that its model builder made of the same model."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

_PROMPT = 16
_VOCABULARY = 1000  # ids that every model has


class _OnnxRuntime:
    """One model folder."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._genai = importlib.import_module("onnxruntime_genai")
        self._numpy = importlib.import_module("numpy")
        config = self._genai.Config(options["model"])
        session = {"session_options": {"intra_op_num_threads": options["threads"]}}
        config.overlay(json.dumps({"model": {"decoder": session}}))
        self._model = self._genai.Model(config)
        self._random = self._numpy.random.default_rng(0)
        self.facts = {
            "engine": "onnxruntime-genai",
            "version": self._genai.__version__,
            "weights": options["weights"],
            "folder_bytes": sum(path.stat().st_size for path in Path(options["model"]).iterdir() if path.is_file()),
        }

    def run(self, cell: dict[str, Any]) -> float:
        """A prefill with its first token, or the steps after it."""
        decode = cell["kind"] == "decode"
        prompt, steps, batch = (_PROMPT, cell["tokens"], cell["batch"]) if decode else (cell["tokens"], 0, 1)
        parameters = self._genai.GeneratorParams(self._model)
        length = prompt + steps + 2
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=batch)
        generator = self._genai.Generator(self._model, parameters)
        ids = self._random.integers(10, _VOCABULARY, (batch, prompt) if batch > 1 else prompt)
        began = time.perf_counter()
        generator.append_tokens(ids.astype(self._numpy.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(steps):
            generator.generate_next_token()
        return time.perf_counter() - first if decode else first - began


def open_engine(options: dict[str, Any]) -> _OnnxRuntime:
    """Opens ``options["model"]``, a folder."""
    return _OnnxRuntime(options)
