"""Tokenizers against llama.cpp's own vectors: vocabulary files with texts and ids, fetched by hand.

They lie in the source distribution of llama-cpp-python, below vendor/llama.cpp/models; some vocabularies are not free,
so they are not kept here. CACHEIR_LLAMA_CPP_VOCABULARIES names that folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cacheir_importers.gguf.pre_tokenizers import PRE_TOKENIZERS
from cacheir_importers.gguf.reader import read_header
from cacheir_importers.gguf.tokenizer import load_tokenizer
from cacheir_importers.gguf.tokenizer_arrays import read_tokenizer

FOLDER = os.environ.get("CACHEIR_LLAMA_CPP_VOCABULARIES", "")
NAMES = ("deepseek-coder", "falcon", "gpt-2", "llama-bpe", "qwen2", "refact", "starcoder")


@pytest.mark.skipif(not FOLDER, reason="CACHEIR_LLAMA_CPP_VOCABULARIES does not name a folder")
@pytest.mark.parametrize("name", NAMES)
def test_ids_of_llama_cpp(name: str) -> None:
    file = Path(FOLDER) / f"ggml-vocab-{name}.gguf"
    metadata = read_header(file).metadata
    assert metadata["tokenizer.ggml.pre"] == name and name in PRE_TOKENIZERS
    source = read_tokenizer(metadata, file.name)
    assert source is not None
    tokenizer = load_tokenizer(source)
    texts = Path(f"{file}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    ids = [list(map(int, line.split())) for line in Path(f"{file}.out").read_text().splitlines()]
    assert len(ids) > 40
    for text, wanted in zip(texts, ids):
        assert tokenizer.encode(text) == wanted, text
