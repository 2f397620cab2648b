"""Models for the parity tests: SmolLM2 as a GGUF file and as a Hugging Face folder, a tiny Llama, and their oracles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs of these tests go to a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


class Oracle:
    """transformers on the CPU in float32."""

    def __init__(self, folder: Path, **options: Any) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()

    def logits(self, ids: list[int]) -> Any:
        """f32 [len(ids), V]."""
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].numpy()

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """``count`` greedy tokens, without any end."""
        made = list(ids)
        for _ in range(count):
            made.append(int(self.logits(made)[-1].argmax()))
        return made[len(ids) :]


@pytest.fixture(scope="session")
def make_oracle() -> type[Oracle]:
    """``make_oracle(folder)``."""
    return Oracle


@pytest.fixture(scope="session")
def smollm2_oracle(smollm2_path: Path) -> Oracle:
    """SmolLM2 with the weights that its GGUF file holds, dequantised by transformers."""
    return Oracle(smollm2_path.parent, gguf_file=smollm2_path.name)


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_oracle: Oracle, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a Hugging Face folder, in float32."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("smollm2")
    smollm2_oracle.model.hf_quantizer = None  # or the folder could not be written
    smollm2_oracle.model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name).save_pretrained(folder)
    return folder
