"""The tokenizer of a GGUF file as data: the arrays of its metadata, checked; what splits text is refused if unknown."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.gguf.pre_tokenizers import PRE_TOKENIZERS

KIND = "gguf-bpe"
_MODEL = "gpt2"
# Values of tokenizer.ggml.token_type (llama.cpp's llama_token_type).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_NAMED = ("bos", "eos", "eot", "eom", "padding", "unknown")


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
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        said = "is missing" if pre is None else f"{pre!r} is not supported"
        raise UnsupportedModelError(
            f"{place}: tokenizer.ggml.pre {said}, and a guess would give wrong ids; supported: {known}"
        )
    tokens = _texts(metadata, "tokenizer.ggml.tokens", place)
    types = _types(metadata, len(tokens), place)
    return TokenizerSource(
        kind=KIND,
        data={
            "pre": pre,
            "tokens": tokens,
            "merges": _texts(metadata, "tokenizer.ggml.merges", place),
            "special": [token for token, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)],
            "added": [token for token, kind in enumerate(types) if kind == _USER_DEFINED],
        },
    )


def _texts(metadata: Mapping[str, Any], key: str, place: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise MalformedModelError(f"{place}: {key!r} must be an array of strings")
    return value


def _types(metadata: Mapping[str, Any], count: int, place: str) -> Sequence[int]:
    """The type of each token. Where the file has none, the tokens it names by id (BOS, EOS, ...) are control tokens."""
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        named = {metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _NAMED}
        return [_CONTROL if token in named else _NORMAL for token in range(count)]
    if not isinstance(types, (array, list)) or not all(isinstance(kind, int) for kind in types):
        raise MalformedModelError(f"{place}: 'tokenizer.ggml.token_type' must be an array of whole numbers")
    if len(types) != count:
        raise MalformedModelError(
            f"{place}: tokenizer.ggml.token_type has {len(types)} entries, and there are {count} tokens"
        )
    return types
