"""A model of 32 layers has the artifact of one of 4, and one call line more for each further layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir import compile_model
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

FEW, MANY = 4, 32
STEP = "prefill-decode-specialization"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Layers -> artifact."""
    root = tmp_path_factory.mktemp("growth")
    made = {}
    for layers in (FEW, MANY):
        write_tiny(root / f"model{layers}", shape=TinyShape(layers=layers))
        made[layers] = compile_model(root / f"model{layers}", target="cpu", output=root / f"artifact{layers}").path
    return made


def test_one_line_more_for_each_layer(folders: dict[int, Path]) -> None:
    counts = {layers: dict(line_counts(folder)) for layers, folder in folders.items()}
    assert set(counts[FEW]) == set(counts[MANY])
    for name, lines in counts[FEW].items():
        growth = counts[MANY][name] - lines
        if name.startswith(("graphs/", "schedules/", "plans/")):
            assert growth == MANY - FEW, name
        elif STEP in name:
            assert growth == 2 * (MANY - FEW), name  # the call of the logical module goes, that of the mode comes
        else:
            assert growth == 0, name


def test_the_lines_that_differ_are_about_calls(folders: dict[int, Path]) -> None:
    texts = [(folders[layers] / "graphs" / "decode.cir").read_text().splitlines() for layers in (FEW, MANY)]
    new = set(texts[1]) - set(texts[0])
    assert new and all(re.search(r"= call @decoder_layer\(|layers=32|%(h|kv)\.32", line) for line in new)


def line_counts(folder: Path) -> Iterator[tuple[str, int]]:
    for part in ("graphs", "schedules", "plans", "passes"):
        for path in sorted((folder / part).iterdir()):
            yield f"{part}/{path.name}", len(path.read_text(encoding="utf-8").splitlines())
