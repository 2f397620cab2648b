"""Which family serves a model that lists several architectures, and what is said where none does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.errors import UnsupportedModelError
from cacheir_importers.family_lookup import GGUF, HUGGINGFACE, find_family
from cacheir_importers.huggingface.importer import import_folder

Build = Callable[..., Path]


def test_the_first_that_a_family_knows_is_taken(folder: Build) -> None:
    listed = ("OtherForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM")
    assert find_family(HUGGINGFACE, listed, "config.json", {}).name == "llama"
    assert find_family(HUGGINGFACE, listed[::-1], "config.json", {}).name == "qwen3"
    model = import_folder(folder(architectures=list(listed)), {})
    assert model.spec is not None and model.spec.family == "llama"


def test_all_are_named_where_no_family_knows_one(folder: Build) -> None:
    wanted = "architectures 'MambaForCausalLM', 'OtherForCausalLM' are not supported; supported: .*LlamaForCausalLM"
    with pytest.raises(UnsupportedModelError, match=wanted):
        import_folder(folder(architectures=["MambaForCausalLM", "OtherForCausalLM"]), {})
    with pytest.raises(UnsupportedModelError, match="names no architecture"):
        find_family(GGUF, (), "model.gguf", {})
