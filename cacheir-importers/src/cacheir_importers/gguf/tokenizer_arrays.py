"""The tokenizer of a GGUF file as data: the arrays of its metadata, checked; what splits text is refused if unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.gguf.pre_tokenizers import PRE_TOKENIZERS

KIND = "gguf-bpe"
_MODEL = "gpt2"
# Values of tokenizer.ggml.token_type (llama.cpp's llama_token_type).
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def read_tokenizer(metadata: Mapping[str, Any], place: str) -> TokenizerSource | None:
    """The tokenizer as data, None where the file has none.

    Raises UnsupportedModelError that names a tokenizer model or a pre-tokenizer that is not known for sure, and
    MalformedModelError for arrays that are missing or do not fit each other.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        return None
    if model != _MODEL:
        raise UnsupportedModelError(
            f"{place}: tokenizer.ggml.model {model!r} is not supported; supported: {_MODEL} (byte-level BPE)"
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        said = "is missing" if pre is None else f"{pre!r} is not supported"
        raise UnsupportedModelError(
            f"{place}: tokenizer.ggml.pre {said}, and a guess would give wrong ids; supported: {known}"
        )
    tokens = _texts(metadata, "tokenizer.ggml.tokens", place)
    types = metadata.get("tokenizer.ggml.token_type")
    if types is not None and len(types) != len(tokens):
        raise MalformedModelError(
            f"{place}: tokenizer.ggml.token_type has {len(types)} entries, and there are {len(tokens)} tokens"
        )
    return TokenizerSource(
        kind=KIND,
        data={
            "pre": pre,
            "tokens": tokens,
            "merges": _texts(metadata, "tokenizer.ggml.merges", place),
            "special": _ids_of(types, _CONTROL, _UNKNOWN),
            "added": _ids_of(types, _USER_DEFINED),
        },
    )


def _texts(metadata: Mapping[str, Any], key: str, place: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise MalformedModelError(f"{place}: {key!r} must be an array of strings")
    return value


def _ids_of(types: Any, *wanted: int) -> list[int]:
    return [token for token, kind in enumerate(types or ()) if kind in wanted]
