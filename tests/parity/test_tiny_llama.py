"""Tiny Llamas against transformers: prefill logits, greedy tokens, paged decode; planted mistakes must be seen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.plugins.installation import Installation
from cacheir.testing import plugin_host
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

TOLERANCE = 1e-4
TOKENS = 64
FAULTS = ("no-rope", "other-pairing", "other-theta", "wrong-kv-heads")

SHAPES = {
    "gqa": TinyShape(),
    "tied": TinyShape(tied=True),
    "one-key-head": TinyShape(kv_heads=1),
    "all-key-heads": TinyShape(kv_heads=4),
    "wide-heads": TinyShape(head_dim=24, rope_theta=500_000.0, layers=3),
}
# With a tied head of this width a tiny model repeats one token whatever it attends to, and with one key head, or one
# for each query head, there is only one map: such shapes cannot tell every fault by their tokens.
FAULTY_SHAPES = ("gqa", "wide-heads")


class Case:
    """A model folder with its oracle, and a prompt of token ids."""

    def __init__(self, name: str, folder: Path, oracle: Any) -> None:
        self.name, self.folder, self.oracle = name, folder, oracle
        self.prompt = [3 + (index * index * 7 + index) % 280 for index in range(21)]


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, make_oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("tiny") / request.param
    write_tiny(folder, shape=SHAPES[request.param])
    return Case(request.param, folder, make_oracle(folder))


def logits_apart(runtime: Runtime, oracle: Any, prompt: list[int], count: int) -> float:
    """The largest difference of logits over a prompt's end and ``count`` decoded tokens (the oracle's own)."""
    tokens = oracle.greedy(prompt, count)
    expected = oracle.logits([*prompt, *tokens])[len(prompt) - 1 :]
    with runtime.session() as session:
        session.append(prompt)
        made = [session.logits()]
        for token in tokens:
            session.append([token])
            made.append(session.logits())
    return float(np.abs(np.array(made) - expected).max())


@pytest.mark.parametrize("page_tokens", [16, 3])
def test_logits_of_prefill_and_paged_decode(case: Case, page_tokens: int) -> None:
    with Runtime(case.folder, backend="cpu", page_tokens=page_tokens, chunk_tokens=8) as runtime:
        assert logits_apart(runtime, case.oracle, case.prompt, 24) <= TOLERANCE


def test_greedy_tokens(case: Case) -> None:
    with Runtime(case.folder, backend="cpu") as runtime:
        for prompt in (case.prompt, case.prompt[:1], [5]):
            made = list(runtime.generate_ids(prompt, TOKENS, ignore_eos=True))
            assert made == case.oracle.greedy(prompt, TOKENS)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copy(Path(__file__).with_name("faults.py"), folder / "planted_llama_faults.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin", "planted_llama_faults")


@pytest.mark.parametrize("case", FAULTY_SHAPES, indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_turns_both_tests_red(case: Case, faulty: Installation, fault: str) -> None:
    options = CompileOptions(passes=(fault,))
    with Runtime(case.folder, compile_options=options, installation=faulty) as runtime:
        assert logits_apart(runtime, case.oracle, case.prompt, 8) > 100 * TOLERANCE
        made = list(runtime.generate_ids(case.prompt, TOKENS, ignore_eos=True))
        assert made != case.oracle.greedy(case.prompt, TOKENS)


@pytest.mark.parametrize("case", FAULTY_SHAPES, indirect=True)
def test_without_a_fault_the_same_installation_is_right(case: Case, faulty: Installation) -> None:
    with Runtime(case.folder, installation=faulty) as runtime:
        assert logits_apart(runtime, case.oracle, case.prompt, 8) <= TOLERANCE
