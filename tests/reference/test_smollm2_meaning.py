"""The logical graph of SmolLM2, run by the definitions of its ops, gives the tokens and margins of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from cacheir.formats.table import core_formats
from cacheir.models.decoder_graph import build_logical, weight_types
from cacheir.ops.table import core_ops
from cacheir.reference.interpreter import Interpreter
from cacheir.weights.sources import WeightFiles
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.models import find_smollm2

GOLDEN = Path(__file__).parents[1] / "golden" / "smollm2.hf.json"
STEPS = 12  # generated tokens that are checked; all are fed at once, each sees only those before it


def test_tokens_and_margins_are_those_of_transformers() -> None:
    model = import_gguf(find_smollm2(), {})
    assert model.spec is not None
    module = build_logical(model.spec, weight_types(model.sources), ops=core_ops())
    interpreter = Interpreter(core_ops(), WeightFiles(model.root, model.sources, core_formats()).array)
    run = json.loads(GOLDEN.read_text(encoding="utf-8"))["runs"][0]
    prompt, generated = run["prompt_token_ids"], run["generated_token_ids"][:STEPS]
    tokens = np.array([*prompt, *generated[:-1]], np.int32)
    positions, row_starts = np.arange(len(tokens), dtype=np.int32), np.array([0, len(tokens)], np.int32)
    (hidden,) = interpreter.run(module, module.main, [tokens, positions, row_starts])
    (logits,) = interpreter.run(module, module.graph("head.logits"), [hidden[len(prompt) - 1 :]])
    assert logits.argmax(1).tolist() == generated
    for token, value in run["first_step_top5"]:
        assert abs(logits[0, token] - value) < 1e-3
    two = np.sort(logits, axis=1)[:, -2:]
    assert np.abs(two[:, 1] - two[:, 0] - np.array(run["margins"][:STEPS])).max() < 2e-3
