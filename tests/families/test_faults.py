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

# model -> faults that show there in logits and tokens
FAULTS = {
    "llama-linear": ("no-scaling",),
    "llama-llama3": ("no-scaling",),
    "llama-yarn": ("no-scaling",),
    "phi3-longrope": ("no-scaling", "window-off-by-one", "other-pairing"),
    "mistral": ("window-off-by-one", "no-window"),
    "qwen2": ("no-bias",),
    "qwen2-windows": ("window-off-by-one", "no-bias"),
    "qwen3": ("no-qk-norm",),
    "gemma2": ("window-off-by-one", "no-softcap", "no-post-norm", "no-multipliers"),
    "gemma3": ("no-scaling", "window-off-by-one", "no-qk-norm", "no-post-norm"),
    "granite": ("no-multipliers",),
    "mixtral": ("not-renormalised",),
    "qwen3_moe": ("not-renormalised", "no-qk-norm"),
}


class Model:
    """A folder with the oracle's logits and greedy tokens."""

    def __init__(self, name: str, folder: Path) -> None:
        family, changes = VARIANTS[name]
        write_tiny(folder, family=family, changes=changes)
        self.folder, oracle = folder, transformers_oracle(folder)
        length = min(len(LONG), 63)  # a rotation that is scaled for 64 positions changes there
        self.ids = LONG[:length]
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
        patch.syspath_prepend(str(Path(__file__).parent))
        yield plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin", "planted_faults")


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
