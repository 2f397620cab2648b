"""The tokenizer of a GGUF file as data: the arrays of its metadata, checked; what splits text is refused if unknown."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.gguf.pre_tokenizers import PRE_TOKENIZERS

KINDS = BYTE_LEVEL, SENTENCEPIECE, WORDPIECE = "gguf-bpe", "gguf-sentencepiece", "gguf-wordpiece"
# Values of tokenizer.ggml.token_type (llama.cpp's llama_token_type).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_NAMED = ("bos", "eos", "eot", "eom", "padding", "unknown")
_WORD_START = "\u2581"
# A vocabulary is refused beyond this; the largest in use have 262,144 tokens.
_MOST_TOKENS = 1 << 24


def read_tokenizer(metadata: Mapping[str, Any], place: str) -> TokenizerSource | None:
    """The tokenizer as data, None where the file has none.

    Raises UnsupportedModelError that names a tokenizer model or a pre-tokenizer that is not known for sure, and
    MalformedModelError for arrays that are missing or do not fit each other.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        return None
    read = _READERS.get(model) if isinstance(model, str) else None
    if read is None:
        known = ", ".join(f"{name} ({what})" for name, what in _MODELS.items())
        raise UnsupportedModelError(f"{place}: tokenizer.ggml.model {model!r} is not supported; supported: {known}")
    tokens = _texts(metadata, "tokenizer.ggml.tokens", place)
    return read(metadata, tokens, _types(metadata, len(tokens), place), place)


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int], place: str) -> TokenizerSource:
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        said = "is missing" if pre is None else f"{pre!r} is not supported"
        raise UnsupportedModelError(
            f"{place}: tokenizer.ggml.pre {said}, and a guess would give wrong ids; supported: {known}"
        )
    merges = _texts(metadata, "tokenizer.ggml.merges", place)
    data = {"pre": pre, "tokens": tokens, "merges": merges, "special": _special(types)}
    return TokenizerSource(kind=BYTE_LEVEL, data={**data, "added": _of_kind(types, _USER_DEFINED)})


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int], place: str) -> TokenizerSource:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, (array, list)) or not all(isinstance(score, float) for score in scores):
        raise MalformedModelError(f"{place}: 'tokenizer.ggml.scores' must be an array of numbers")
    if len(scores) != len(tokens):
        raise MalformedModelError(
            f"{place}: tokenizer.ggml.scores has {len(scores)} entries, and there are {len(tokens)} tokens"
        )
    # A user-defined piece with the mark of a space in it can only be found among the pieces: texts have no such mark.
    data = {
        "tokens": tokens,
        "scores": list(scores),
        "pieces": _of_kind(types, _NORMAL, _USER_DEFINED),
        "special": _special(types),
        "added": [token for token in _of_kind(types, _USER_DEFINED) if _WORD_START not in tokens[token]],
        "unknown": _token_id(metadata, "unknown", len(tokens)),
        "space_prefix": _flag(metadata, "tokenizer.ggml.add_space_prefix", True, place),
    }
    if _flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", False, place):
        raise UnsupportedModelError(f"{place}: tokenizer.ggml.remove_extra_whitespaces = true is not supported")
    if metadata.get("tokenizer.ggml.precompiled_charsmap"):
        raise UnsupportedModelError(f"{place}: tokenizer.ggml.precompiled_charsmap (a normaliser) is not supported")
    return TokenizerSource(kind=SENTENCEPIECE, data=data)


def _gemma4(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int], place: str) -> TokenizerSource:
    data = {
        "tokens": tokens,
        "merges": _texts(metadata, "tokenizer.ggml.merges", place),
        "special": _special(types),
        "added": _of_kind(types, _USER_DEFINED),
        "unknown": _token_id(metadata, "unknown", len(tokens)),
        "space_prefix": _flag(metadata, "tokenizer.ggml.add_space_prefix", False, place),
    }
    return TokenizerSource(kind=SENTENCEPIECE, data=data)


def _wordpiece(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int], place: str) -> TokenizerSource:
    unknown = _token_id(metadata, "unknown", len(tokens))
    if unknown is None:
        raise MalformedModelError(f"{place}: 'tokenizer.ggml.unknown_token_id' must name a token")
    return TokenizerSource(kind=WORDPIECE, data={"tokens": tokens, "special": _special(types), "unknown": unknown})


_Reader = Callable[[Mapping[str, Any], list[str], Sequence[int], str], TokenizerSource]
_READERS: dict[str, _Reader] = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _gemma4, "bert": _wordpiece}
_MODELS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE", "gemma4": "BPE of pieces", "bert": "WordPiece"}


def _special(types: Sequence[int]) -> list[int]:
    return _of_kind(types, _CONTROL, _UNKNOWN)


def _of_kind(types: Sequence[int], *kinds: int) -> list[int]:
    return [token for token, kind in enumerate(types) if kind in kinds]


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    token = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token if type(token) is int and 0 <= token < count else None


def _flag(metadata: Mapping[str, Any], key: str, default: bool, place: str) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise MalformedModelError(f"{place}: {key!r} must be true or false, not {value!r}")
    return value


def _texts(metadata: Mapping[str, Any], key: str, place: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise MalformedModelError(f"{place}: {key!r} must be an array of strings")
    if len(value) > _MOST_TOKENS:
        raise UnsupportedModelError(f"{place}: {key!r} has {len(value)} entries; at most {_MOST_TOKENS} are read")
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
