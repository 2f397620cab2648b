"""The real model: opened quickly, and its tokenizer gives the ids of the golden file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import default
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.gguf.tokenizer import load_tokenizer
from cacheir_importers.library_tokenizer import LibraryTokenizer
from cacheir_importers.models import find_smollm2

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.hf.json").read_text())


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> ImportedModel:
    return import_gguf(smollm2_path, {})


@pytest.fixture(scope="module")
def tokenizer(model: ImportedModel) -> LibraryTokenizer:
    assert model.tokenizer is not None
    return load_tokenizer(model.tokenizer)


def test_it_is_found_by_its_name(smollm2_path: Path) -> None:
    assert find_smollm2() == smollm2_path
    assert default().models["smollm2"].license == "Apache-2.0"


def test_what_it_is(model: ImportedModel) -> None:
    spec = model.spec
    assert spec is not None
    assert (spec.vocab_size, spec.hidden, spec.max_positions, len(spec.layers)) == (49_152, 576, 8192, 30)
    assert spec.tied_head and spec.norm_eps == 1e-5
    layer = spec.layers[0]
    assert (layer.heads, layer.kv_heads, layer.head_dim, layer.feed_forward) == (9, 3, 64, 1536)
    assert layer.rope is not None and (layer.rope.theta, layer.rope.layout) == (100_000.0, "interleaved")
    assert (model.generation.bos_id, model.generation.add_bos, model.generation.eos_ids) == (1, False, (2,))
    assert model.notes == ()
    formats = [source.format for source in model.sources.values()]
    assert {name: formats.count(name) for name in set(formats)} == {"q4_1": 210, "q8_0": 1, "f32": 61}


@pytest.mark.parametrize("run", GOLDEN["runs"], ids=lambda run: run["prompt"][:20])
def test_golden_ids(tokenizer: LibraryTokenizer, run: dict[str, Any]) -> None:
    assert tokenizer.encode(run["prompt"], special=True) == run["prompt_token_ids"]
    assert tokenizer.decode(run["prompt_token_ids"], skip_special=False) == run["prompt"]
    assert tokenizer.decode(run["generated_token_ids"], skip_special=False) == run["generated_text"]


def test_every_token_has_bytes(tokenizer: LibraryTokenizer) -> None:
    assert tokenizer.vocab_size == 49_152 and tokenizer.special_ids == frozenset(range(17))
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    assert [token for token, piece in enumerate(pieces) if not piece] == list(range(17))
    assert {bytes([byte]) for byte in range(0x20, 0x7F)} <= set(pieces)


def test_opening_it_is_quick_and_imports_little(smollm2_path: Path) -> None:
    """CPU time of importing and building the tokenizer; a first token within 2 s of process start leaves it 0.7 s."""
    code = (
        "import sys, time; start = time.process_time()\n"
        "from pathlib import Path\n"
        "from cacheir_importers.gguf.importer import import_gguf\n"
        "from cacheir_importers.gguf.tokenizer import load_tokenizer\n"
        "load_tokenizer(import_gguf(Path(sys.argv[1]), {}).tokenizer).encode('The capital of France is')\n"
        "heavy = ('torch', 'gguf', 'transformers', 'safetensors', 'numpy')\n"
        "print(time.process_time() - start, *[name for name in heavy if name in sys.modules])"
    )
    best = 10.0
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", code, smollm2_path], capture_output=True, text=True, check=True)
        seconds, *modules = run.stdout.split()
        assert modules == []
        best = min(best, float(seconds))
    assert best < 0.7
