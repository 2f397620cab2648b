"""SmolLM2 against transformers in float32: ids, logits, margins, greedy tokens; as a GGUF file and as a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir import Runtime

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.hf.json").read_text())
RUNS = {run["prompt"][:20]: run for run in GOLDEN["runs"]}

LOGIT_TOLERANCE = 1e-3
MARGIN_TOLERANCE = 2e-3
# Below this lead another order of additions may pick the other token, and what follows has nothing to compare with.
CLEAR_MARGIN = 0.02


@pytest.fixture(scope="module", params=["gguf", "folder"])
def runtime(request: pytest.FixtureRequest) -> Any:
    name = {"gguf": "smollm2_path", "folder": "smollm2_folder"}[request.param]
    with Runtime(request.getfixturevalue(name), backend="cpu", max_seq=256) as opened:
        yield opened


@pytest.mark.parametrize("prompt", RUNS)
def test_tokens_margins_and_logits(runtime: Runtime, smollm2_oracle: Any, prompt: str) -> None:
    run = RUNS[prompt]
    ids = run["prompt_token_ids"]
    with runtime.session() as session:
        session.append(ids)
        steps = []
        for step, token in enumerate(run["generated_token_ids"]):
            logits = session.logits()
            steps.append(logits)
            second, first = np.sort(logits)[-2:]
            assert abs(first - second - run["margins"][step]) <= MARGIN_TOLERANCE, f"margin at step {step}"
            if run["margins"][step] < CLEAR_MARGIN:
                break
            assert int(logits.argmax()) == token, f"token at step {step}"
            session.append([token])
    expected = smollm2_oracle.logits([*ids, *run["generated_token_ids"]])[len(ids) - 1 :][: len(steps)]
    assert np.abs(np.array(steps) - expected).max() <= LOGIT_TOLERANCE
    for token, value in run["first_step_top5"]:
        assert abs(steps[0][token] - value) <= LOGIT_TOLERANCE


@pytest.mark.parametrize("prompt", [name for name, run in RUNS.items() if run["kind"] == "raw"])
def test_prompt_ids(runtime: Runtime, prompt: str) -> None:
    assert runtime.encode(RUNS[prompt]["prompt"]) == RUNS[prompt]["prompt_token_ids"]


def test_chat_ids_and_a_whole_answer(runtime: Runtime) -> None:
    (run,) = [run for run in GOLDEN["runs"] if run["kind"] == "chat"]
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    assert runtime.chat_ids(messages) == run["prompt_token_ids"]
    assert "".join(runtime.chat(messages, max_new_tokens=40)) == run["generated_text"].removesuffix("<|im_end|>")


def test_greedy_generation_is_the_golden_text_up_to_the_first_small_margin(runtime: Runtime) -> None:
    for run in GOLDEN["runs"]:
        small = next((step for step, margin in enumerate(run["margins"]) if margin < CLEAR_MARGIN), len(run["margins"]))
        made = list(runtime.generate_ids(run["prompt_token_ids"], small, ignore_eos=True))
        assert made == run["generated_token_ids"][:small]
