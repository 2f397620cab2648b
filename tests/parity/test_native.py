"""The native backend: SmolLM2 against goldens and the NumPy backend, and a tiny model of every family."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir_importers.family_table import families
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape
from cacheir_native.probe import why_unavailable

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.hf.json").read_text())
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
CLEAR_MARGIN = 0.01
LOGIT_TOLERANCE = 1e-3
PRECISE = CompileOptions(precise=True)
IDS = [3 + (index * index * 7 + index) % 280 for index in range(21)]


@pytest.fixture(scope="module")
def precise(smollm2_path: Path) -> Any:
    with Runtime(smollm2_path, "native", max_seq=256, compile_options=PRECISE) as opened:
        yield opened


@pytest.fixture(scope="module")
def rounded(smollm2_path: Path) -> Any:
    with Runtime(smollm2_path, "native", max_seq=256) as opened:
        yield opened


def test_auto_leaves_numpy_to_the_last(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEIR_BACKEND")
    with Runtime(smollm2_path, max_seq=256) as opened:
        assert opened.backend_choice.name != "cpu", opened.backend_choice.reason


@pytest.mark.parametrize("run", GOLDEN["runs"], ids=lambda run: run["prompt"][:20])
def test_precise_tokens_are_the_goldens(precise: Runtime, run: dict[str, Any]) -> None:
    clear = next((step for step, margin in enumerate(run["margins"]) if margin < CLEAR_MARGIN), len(run["margins"]))
    assert clear > 4
    made = list(precise.generate_ids(run["prompt_token_ids"], clear, ignore_eos=True))
    assert made == run["generated_token_ids"][:clear]


def test_precise_logits_are_numpys(precise: Runtime, smollm2_path: Path) -> None:
    ids = GOLDEN["runs"][0]["prompt_token_ids"]
    with Runtime(smollm2_path, "cpu", max_seq=256) as reference:
        assert np.abs(logits(precise, ids) - logits(reference, ids)).max() <= LOGIT_TOLERANCE


def test_both_modes_give_the_same_answer(precise: Runtime, rounded: Runtime) -> None:
    (run,) = [run for run in GOLDEN["runs"] if run["kind"] == "chat"]
    answer = run["generated_text"].removesuffix("<|im_end|>")
    assert "".join(precise.chat(QUESTION, max_new_tokens=40)) == answer
    assert "".join(rounded.chat(QUESTION, max_new_tokens=40)) == answer


def test_precise_on_the_command_line(smollm2_path: Path) -> None:
    run = GOLDEN["runs"][0]
    words = ["run", str(smollm2_path), "--prompt", run["prompt"], "--max-new-tokens", "8", "--max-seq", "256"]
    words += ["--backend", "native", "--precise"]
    done = subprocess.run([sys.executable, "-m", "cacheir", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert run["generated_text"].startswith(done.stdout.removesuffix("\n"))
    assert len(done.stdout) > 8


def test_rounded_logits_are_near(precise: Runtime, rounded: Runtime) -> None:
    ids = GOLDEN["runs"][1]["prompt_token_ids"]
    exact = logits(precise, ids).astype(np.float64)
    apart = np.abs(logits(rounded, ids) - exact).max()
    assert LOGIT_TOLERANCE < apart < 0.05 * np.abs(exact).max()  # below it nothing would have been rounded


@pytest.mark.parametrize("family", [record.name for record in families()])
def test_every_family(family: str, tmp_path: Path) -> None:
    """Ops without an instruction run by their meaning, so that no family is refused."""
    write_tiny(tmp_path / "model", family=family, shape=TinyShape(layers=2))
    with (
        Runtime(tmp_path / "model", "native", chunk_tokens=8, compile_options=PRECISE) as native,
        Runtime(tmp_path / "model", "cpu", chunk_tokens=8) as reference,
    ):
        expected = logits(reference, IDS)
        assert np.abs(logits(native, IDS) - expected).max() <= 1e-4 * np.abs(expected).max()


def logits(runtime: Runtime, ids: list[int]) -> Any:
    """f32 [4, V]: those after a prompt, and after three tokens more."""
    with runtime.session() as session:
        session.append(ids)
        made = [session.logits()]
        for token in (5, 17, 40):
            session.append([token])
            made.append(session.logits())
    return np.array(made)
