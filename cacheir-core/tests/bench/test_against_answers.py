"""Whole answers beside another engine: equal prompts, tokens by the rule of margins, busy time, the GPU's state."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cacheir.bench.against import contestants
from cacheir.bench.against.answers import MOST_JUDGED, answers_table, compare_answers, partings
from cacheir.bench.against.cells import Cell, chosen_cells
from cacheir.bench.against.child import Child
from cacheir.bench.against.contestants import Contestant
from cacheir.bench.against.gpu_state import read_state
from cacheir.errors import BackendError
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve

DECODE = chosen_cells(["decode-128"])[0]
CELL = Cell(name="answer-4-3-batch-20", kind="answer", tokens=3, prompt=4, batch=20)


def test_whole_answers_get_the_same_prompts_in_every_engine(tmp_path: Path) -> None:
    """A stand-in for vLLM beside what our own child draws: ids, lengths, greedy and no prefix cache."""
    (tmp_path / "vllm.py").write_text(
        "import json, pathlib\n"
        "__version__ = '0'\n"
        "class SamplingParams:\n"
        "    def __init__(self, **given): self.given = given\n"
        "class _Config:\n"
        "    def get_vocab_size(self): return 97\n"
        "class _Engine: model_config = _Config()\n"
        "class LLM:\n"
        "    def __init__(self, **given):\n"
        "        assert given['enable_prefix_caching'] is False and given['dtype'] == 'bfloat16'\n"
        "        self.llm_engine = _Engine()\n"
        "    def generate(self, prompts, params, use_tqdm):\n"
        "        assert params.given['temperature'] == 0.0 and params.given['ignore_eos']\n"
        "        pathlib.Path(__file__).with_name('seen.json').write_text(json.dumps(prompts))\n"
        "        count = params.given['max_tokens']\n"
        "        return [type('R', (), {'outputs': [type('O', (), {'token_ids': [1] * count})]}) for _ in prompts]\n"
    )
    cell = next(cell for cell in chosen_cells((), answers=True) if cell.batch == 8)
    default_mode, in_process = resolve(default().peers["vllm"].run)(
        {"model": str(tmp_path), "threads": 1, "python": ""}
    )
    assert in_process["environment"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in default_mode["environment"]
    contestant = Contestant(
        engine="vllm", setting="", command=tuple(default_mode["command"]),
        environment={**default_mode["environment"], "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    with Child(contestant) as child:
        assert child.facts == {"engine": "vllm", "version": "0"}
        (seconds,) = child.run(cell)
        assert seconds > 0
        said = child.ask(cell, "answers")
        assert said["busy_seconds"] is None and said["ids"] == [[1] * cell.tokens] * cell.batch
        with pytest.raises(BackendError, match="gives no margins: AttributeError"):
            child.ask(cell, "margins")
        with pytest.raises(BackendError, match="decode is no cell of whole answers"):
            child.run(DECODE)
    seen = [prompt["prompt_token_ids"] for prompt in json.loads((tmp_path / "seen.json").read_text())]
    assert [len(ids) for ids in seen] == [cell.prompt] * cell.batch
    children = str(Path(contestants.__file__).with_name("children"))
    code = (
        f"import sys, json; sys.path.insert(0, {children!r}); from answer_prompts import answer_prompts;"
        f"print(json.dumps(answer_prompts({asdict(cell)!r}, 97)))"
    )
    ours = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ours.stdout) == seen


class Asked:
    """An engine that answers from a table; a sentence in it is its refusal."""

    def __init__(self, engine: str, **said: Any) -> None:
        self.contestant = Contestant(engine=engine, setting="", command=("none",))
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._said = said

    def ask(self, cell: Cell, name: str, **given: Any) -> Any:
        self.asked.append((name, given))
        if isinstance(self._said.get(name, "it has none"), str):
            raise BackendError(self._said.get(name, "it has none"))
        return self._said[name]


def test_the_first_difference_of_each_answer_is_judged_by_exact_logits() -> None:
    assert partings([[1], [2], [3]], [[5, 6], [7, 8], [9, 9]], [[5, 7], [7, 8], [4, 9]]) == [
        ([1, 5], 6, 7),
        ([3], 9, 4),
    ]
    prompts, mine = [[1, 2, 3, 4]] * 20, [[5, 6, 7]] * 20
    theirs = [[5, 6, 7]] * 8 + [[5, 0, 7]] * 4 + [[0, 6, 7]] * 8
    ours = Asked(
        "cacheir", answers={"ids": mine, "busy_seconds": 0.001}, prompts=prompts,
        margins={"error": 0.1, "margins": [0.39, 0.41, 0.0, 0.5, 0.1, 0.2, 0.3, 0.4]},
    )  # fmt: skip
    peer = Asked("vllm", answers={"ids": theirs, "busy_seconds": None})
    first, second = compare_answers(CELL, [peer, ours])
    assert (first["label"], first["busy_seconds"]) == ("cacheir", 0.001) and "same" not in first
    assert (second["same"], second["tokens"], second["parted"], second["judged"], second["clear"]) == (48, 60, 12, 8, 2)
    (chosen,) = [given["partings"] for name, given in ours.asked if name == "margins"]
    assert chosen == [([1, 2, 3, 4], 5, 0)] * MOST_JUDGED  # those that cost least
    table = "\n".join(answers_table([first, second]))
    assert f"| {CELL.name} | cacheir | 1.00 |  |  |" in table
    assert f"| {CELL.name} | vllm |  | 80% | 2 of 8 judged, 12 answers differ |" in table


def test_equal_answers_need_no_judge_and_a_refusal_stays_a_row() -> None:
    answers = {"ids": [[5, 6, 7]], "busy_seconds": None}
    ours = Asked("cacheir", answers=answers, prompts=[[1]])
    rows = compare_answers(CELL, [ours, Asked("vllm", answers=answers), Asked("other", answers="out of memory")])
    assert (rows[1]["same"], rows[1]["parted"], rows[1]["clear"]) == (3, 0, 0)
    assert rows[2]["refused"] == "out of memory" and "margins" not in [name for name, _ in ours.asked]
    assert "| other | not told: out of memory |" in "\n".join(answers_table(rows))
    assert answers_table([]) == []


def test_kernels_that_overlap_are_busy_once() -> None:
    path = Path(contestants.__file__).with_name("children") / "gpu_busy.py"
    spec = importlib.util.spec_from_file_location("gpu_busy_of_children", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.75)]) == pytest.approx(4.0)
    assert module.covered([]) == 0.0


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (
            "1980, 312.50, 41, 90112\n1000, 1, 1, 1\n",
            {"clock_mhz": 1980, "power_w": 312.5, "temperature_c": 41, "memory_mib": 90112},
        ),
        ("1980, [N/A], 41, 7\n", {"clock_mhz": 1980, "temperature_c": 41, "memory_mib": 7}),
        ("No devices were found\n", None),
        ("", None),
    ],
)
def test_what_nvidia_smi_says(line: str, state: dict[str, float] | None) -> None:
    assert read_state(line) == state
