"""Mistakes that families are prone to, planted as passes: each turns the tests of logits and of tokens red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import VARIANTS, transformers_oracle

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.plugins.installation import Installation
from cacheir.testing import FamilyTests, plugin_host
from cacheir_importers.tiny import write_tiny

PROMPT = FamilyTests.prompt
LONG = [3 + (index * index * 5 + 11 * index) % 280 for index in range(80)]

# What may be wrong in any family; these passes are those of tests/parity.
CLASSIC = ("no-rope", "other-pairing", "other-theta", "wrong-kv-heads")
# model -> faults that show there in logits and tokens
FAULTS = {
    "llama": CLASSIC,
    "llama-biases": ("no-bias",),
    "llama-linear": ("no-scaling",),
    "llama-longrope": ("no-scaling",),
    "llama-llama3": ("no-scaling",),
    "llama-yarn": ("no-scaling",),
    "phi3": CLASSIC,
    "phi3-longrope": ("no-scaling", "window-off-by-one"),
    "mistral": (*CLASSIC, "window-off-by-one", "no-window"),
    "qwen2": (*CLASSIC, "no-bias"),
    "qwen2-windows": ("window-off-by-one", "no-bias"),
    "qwen2_moe": (*CLASSIC, "no-bias", "no-shared-expert", "no-shared-gate"),
    "qwen2_moe-mixed": ("not-renormalised", "no-shared-gate", "window-off-by-one"),
    "qwen3": (*CLASSIC, "no-qk-norm"),
    "gemma2": (*CLASSIC, "window-off-by-one", "no-softcap", "no-post-norm", "no-multipliers"),
    "gemma3": (*CLASSIC, "no-scaling", "window-off-by-one", "no-qk-norm", "no-post-norm"),
    "granite": (*CLASSIC, "no-multipliers"),
    "mixtral": (*CLASSIC, "not-renormalised"),
    "qwen3_moe": (*CLASSIC, "not-renormalised", "no-qk-norm"),
    "smollm3": CLASSIC,
}


class Model:
    """A folder with the oracle's logits and greedy tokens."""

    def __init__(self, name: str, folder: Path) -> None:
        family, changes = VARIANTS[name]
        write_tiny(folder, family=family, changes=changes)
        self.folder, oracle = folder, transformers_oracle(folder)
        self.ids = LONG
        self.logits = oracle(self.ids)[-1]
        tokens = list(PROMPT)
        for _ in range(24):
            tokens.append(int(oracle(tokens)[-1].argmax()))
        self.tokens = tokens[len(PROMPT) :]

    def differences(self, installation: Installation, *passes: str) -> tuple[float, int]:
        """How far the last logits of a prompt are from the oracle's, and how many greedy tokens differ."""
        options = CompileOptions(passes=passes)
        with Runtime(self.folder, compile_options=options, installation=installation) as runtime:
            with runtime.session() as session:
                session.append(self.ids)
                apart = float(np.abs(session.logits() - self.logits).max())
            made = list(runtime.generate_ids(list(PROMPT), len(self.tokens), ignore_eos=True))
        return apart, sum(mine != theirs for mine, theirs in zip(made, self.tokens))


@pytest.fixture(scope="module")
def faulty() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for folder in (Path(__file__).parent, Path(__file__).parent.with_name("parity")):
            patch.syspath_prepend(str(folder))
        yield plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin", "planted_faults", "faults")


@pytest.fixture(scope="module", params=FAULTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Model]:
    return request.param, Model(request.param, tmp_path_factory.mktemp("faults") / request.param)


def test_each_fault_turns_both_tests_red(model: tuple[str, Model], faulty: Installation) -> None:
    name, case = model
    apart, wrong = case.differences(faulty)
    assert apart <= FamilyTests.tolerance and wrong == 0, "without a fault the same installation is right"
    for fault in FAULTS[name]:
        apart, wrong = case.differences(faulty, fault)
        assert apart > 100 * FamilyTests.tolerance, f"{fault}: logits are {apart:.1e} apart"
        assert wrong, f"{fault}: not a token differs"
