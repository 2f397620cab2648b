"""A model of 32 layers has the artifact of one of 4, and one call line more for each further layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir import compile_model
from cacheir.artifact.read import read_artifact
from cacheir.exporters.pass_history import pass_history
from cacheir.plugins.installation import default
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

FEW, MANY = 4, 32
STEP = "prefill-decode-specialization"
FAMILIES = ("llama", "gemma3", "qwen3_moe")


@pytest.fixture(scope="module", params=FAMILIES)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Layers -> artifact, for one family."""
    root = tmp_path_factory.mktemp("growth")
    made = {}
    for layers in (FEW, MANY):
        write_tiny(root / f"model{layers}", family=request.param, shape=TinyShape(layers=layers))
        made[layers] = compile_model(root / f"model{layers}", target="cpu", output=root / f"artifact{layers}").path
    return made


def test_one_line_more_for_each_layer(folders: dict[int, Path]) -> None:
    counts = {layers: dict(line_counts(folder)) for layers, folder in folders.items()}
    assert set(counts[FEW]) == set(counts[MANY])
    for name, lines in counts[FEW].items():
        growth = counts[MANY][name] - lines
        has_calls = name.startswith(("graphs/", "schedules/", "plans/")) or STEP in name
        assert growth == (MANY - FEW if has_calls else 0), name


def test_the_diffs_read_are_whole(folders: dict[int, Path]) -> None:
    artifact = read_artifact(folders[MANY], default())
    for record in artifact.records():
        assert "\n~" not in record.diff
    for mode, module in artifact.program.modules.items():
        steps = pass_history(module, artifact.records()).steps  # undoes each diff, and compares the hashes
        (step,) = [step for step in steps if step.name == STEP]
        (main,) = [change for change in step.changes if change.graph == "main"]
        assert sum("= call @" in line for line in main.diff.splitlines() if line[0] == "-") == MANY, mode


def test_the_lines_that_differ_are_about_calls(folders: dict[int, Path]) -> None:
    texts = [(folders[layers] / "graphs" / "decode.cir").read_text().splitlines() for layers in (FEW, MANY)]
    new = set(texts[1]) - set(texts[0])
    assert new and all(re.search(r"= call @decoder_layer[-\w]*\(|layers=\d+|%(h|kv)\S*\.32", line) for line in new)


def line_counts(folder: Path) -> Iterator[tuple[str, int]]:
    for part in ("graphs", "schedules", "plans", "passes"):
        for path in sorted((folder / part).iterdir()):
            yield f"{part}/{path.name}", len(path.read_text(encoding="utf-8").splitlines())
