"""Mistakes that families are prone to, planted as passes: each turns the tests of logits and of tokens red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import VARIANTS, transformers_oracle

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.formats.table import core_formats
from cacheir.ir.graph import Module
from cacheir.models.decoder_graph import build_logical, weight_types
from cacheir.pipeline.context import PassContext
from cacheir.plugins import resolve
from cacheir.plugins.installation import Installation
from cacheir.reference.interpreter import Interpreter
from cacheir.testing import FamilyTests, plugin_host
from cacheir.weights.sources import WeightFiles
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.tiny import write_tiny

PROMPT = FamilyTests.prompt
LONG = [3 + (index * index * 5 + 11 * index) % 280 for index in range(64)]  # as many as a head takes

# What may be wrong in any family; these passes are those of tests/parity.
CLASSIC = ("no-rope", "other-pairing", "other-theta", "wrong-kv-heads")
# model -> faults that show there in logits and tokens
FAULTS = {
    "llama": CLASSIC,
    "llama-biases": ("no-bias",),
    "llama-dynamic": ("no-scaling",),
    "llama-linear": ("no-scaling",),
    "llama-longrope": ("no-scaling",),
    "llama-llama3": ("no-scaling",),
    "llama-yarn": ("no-scaling",),
    "phi3": CLASSIC,
    "phi3-longrope": ("no-scaling", "window-off-by-one"),
    "mixtral-window": ("window-off-by-one", "not-renormalised"),
    "mistral": (*CLASSIC, "window-off-by-one", "no-window"),
    "qwen2": (*CLASSIC, "no-bias"),
    "qwen2-windows": ("window-off-by-one", "no-bias"),
    "qwen2-yarn": ("no-scaling",),
    "qwen2_moe": (*CLASSIC, "no-bias", "no-shared-expert", "no-shared-gate"),
    "qwen2_moe-mixed": ("not-renormalised", "no-shared-gate", "window-off-by-one"),
    "qwen3": (*CLASSIC, "no-qk-norm"),
    "qwen3-windows": ("window-off-by-one", "no-qk-norm"),
    "qwen3-yarn": ("no-scaling",),
    "gemma2": (
        *CLASSIC,
        "window-off-by-one",
        "no-logit-softcap",
        "no-score-softcap",
        "no-post-norm",
        "no-multipliers",
    ),
    "gemma3": (*CLASSIC, "no-scaling", "window-off-by-one", "no-qk-norm", "no-post-norm"),
    "granite": (*CLASSIC, "no-multipliers"),
    "mixtral": (*CLASSIC, "not-renormalised"),
    "qwen3_moe": (*CLASSIC, "not-renormalised", "no-qk-norm"),
    "qwen3_moe-window": ("window-off-by-one",),
    "smollm3": CLASSIC,
    "smollm3-windows": ("window-off-by-one",),
}


# Capped logits are in the order of those that are not, so this one shows in logits alone.
ORDER_KEPT = "no-logit-softcap"
# Some of them once more through the whole compiler, with greedy tokens: what is planted there stays in the program.
COMPILED = {
    "gemma2": "no-score-softcap",
    "llama-yarn": "no-scaling",
    "mistral": "window-off-by-one",
    "mixtral": "not-renormalised",
    "phi3-longrope": "no-scaling",
    "qwen2": "no-bias",
    "qwen2_moe-mixed": "no-shared-gate",
    "qwen3": "no-qk-norm",
}


class Model:
    """A tiny model, its logical module and the oracle's logits of a long text."""

    def __init__(self, name: str, folder: Path, installation: Installation) -> None:
        family, changes = VARIANTS[name]
        write_tiny(folder, family=family, changes=changes)
        self.folder, self.oracle, self.installation = folder, transformers_oracle(folder), installation
        self.logits = self.oracle(LONG)
        self.ops = installation.ops.by_name()
        model = import_folder(folder, {"installation": installation})
        assert model.spec is not None
        families = installation.families.by_name()
        self.module = build_logical(model.spec, weight_types(model.sources), ops=self.ops, families=families)
        self.weights = WeightFiles(model.root, model.sources, core_formats())

    def differences(self, *faults: str) -> tuple[float, int]:
        """How far the logits of the text are from the oracle's, and after how many tokens another one is the best."""
        module = self.module
        for fault in faults:
            run = resolve(self.installation.passes[fault].run)
            context = PassContext(ops=self.ops, pass_name=fault, mode="")
            module = Module("", tuple(run(graph, context) for graph in module.graphs))
        interpreter = Interpreter(self.ops, self.weights.array)
        count = len(LONG)
        given = {
            "tokens": np.array(LONG, np.int32),
            "positions": np.arange(count, dtype=np.int32),
            "row_starts": np.array([0, count], np.int32),
            "sequence_lengths": np.full(count, count, np.int32),
        }
        (hidden,) = interpreter.run(module, module.main, [given[value.name] for value in module.main.inputs])
        (logits,) = interpreter.run(module, module.graph("head.logits"), [hidden])
        wrong = int((logits.argmax(-1) != self.logits.argmax(-1)).sum())
        return float(np.abs(logits - self.logits).max()), wrong

    def compiled_differences(self, *passes: str) -> tuple[float, int]:
        """The same of the last logits and of greedy tokens, both from a runtime."""
        tokens = list(PROMPT)
        for _ in range(16):
            tokens.append(int(self.oracle(tokens)[-1].argmax()))
        options = CompileOptions(passes=passes)
        with Runtime(self.folder, compile_options=options, installation=self.installation) as runtime:
            with runtime.session() as session:
                session.append(LONG)
                apart = float(np.abs(session.logits() - self.logits[-1]).max())
            made = list(runtime.generate_ids(list(PROMPT), 16, ignore_eos=True))
        return apart, sum(mine != theirs for mine, theirs in zip(made, tokens[len(PROMPT) :]))


@pytest.fixture(scope="module")
def faulty() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for folder in (Path(__file__).parent, Path(__file__).parent.with_name("parity")):
            patch.syspath_prepend(str(folder))
        yield plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin", "planted_faults", "faults")


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_changes_logits_and_tokens(name: str, tmp_path: Path, faulty: Installation) -> None:
    model = Model(name, tmp_path / name, faulty)
    apart, wrong = model.differences()
    assert apart <= FamilyTests.tolerance and wrong == 0, "without a fault the same installation is right"
    for fault in FAULTS[name]:
        apart, wrong = model.differences(fault)
        assert apart > 100 * FamilyTests.tolerance, f"{fault}: logits are {apart:.1e} apart"
        assert bool(wrong) is (fault != ORDER_KEPT), f"{fault}: {wrong} tokens differ"


@pytest.mark.parametrize(("name", "fault"), COMPILED.items())
def test_a_fault_turns_both_tests_red(name: str, fault: str, tmp_path: Path, faulty: Installation) -> None:
    model = Model(name, tmp_path / name, faulty)
    apart, wrong = model.compiled_differences()
    assert apart <= FamilyTests.tolerance and wrong == 0, "without a fault the same installation is right"
    apart, wrong = model.compiled_differences(fault)
    assert apart > 100 * FamilyTests.tolerance and wrong, f"{fault}: {apart:.1e} apart, {wrong} tokens differ"
