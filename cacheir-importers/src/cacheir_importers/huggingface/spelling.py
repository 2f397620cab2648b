"""What a parsed tokenizer.json says about ids and bytes: how tokens spell bytes, the highest id, the unknown token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.byte_fallback import WORD_START, byte_token, piece_bytes
from cacheir_importers.byte_level import BYTE_CHARACTERS, to_bytes

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Spelling:
    """How the tokens of a vocabulary spell bytes, and whether the first space of a text is the tokenizer's own."""

    to_bytes: Callable[[str], bytes]
    from_byte: Callable[[int], str]
    strips_leading_space: bool = False


def read_spelling(parsed: Mapping[str, Any]) -> Spelling:
    """The spelling that the decoder of a parsed tokenizer.json stands for; UnsupportedModelError names another one."""
    decoder = parsed.get("decoder")
    if not isinstance(decoder, dict):
        raise UnsupportedModelError(f"{TOKENIZER_FILE} has no decoder, so its tokens have no bytes")
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise MalformedModelError(f"{TOKENIZER_FILE}: the decoders of a Sequence must be a list of objects")
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(to_bytes, BYTE_CHARACTERS.__getitem__)
    if kinds == ["Metaspace"]:
        return _metaspace(steps[0], parsed)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"]):
        return _sentencepiece(steps)
    names = ", ".join(str(kind) for kind in kinds)
    raise UnsupportedModelError(
        f"{TOKENIZER_FILE}: the decoder {names} is not supported; supported: ByteLevel, Metaspace, SentencePiece's"
        " Replace, ByteFallback, Fuse, Strip"
    )


def highest_id(parsed: Mapping[str, Any]) -> int:
    """The highest id of a parsed tokenizer.json, added tokens included; -1 for none."""
    model = parsed.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = parsed.get("added_tokens") or []
    if not isinstance(vocabulary, (dict, list)) or not isinstance(added, list):
        raise MalformedModelError(f"{TOKENIZER_FILE}: 'model.vocab' or 'added_tokens' is missing or of a wrong type")
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    ids += [token.get("id") if isinstance(token, dict) else None for token in added]
    if not all(type(token) is int for token in ids):
        raise MalformedModelError(f"{TOKENIZER_FILE}: an id is not a whole number")
    return max(ids, default=-1)


def unknown_id(parsed: Mapping[str, Any]) -> int | None:
    """The id that stands for text that the vocabulary cannot spell, None where there is none."""
    model = parsed["model"]
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    text, vocabulary = model.get("unk_token"), model["vocab"]
    found = vocabulary.get(text) if isinstance(vocabulary, dict) and isinstance(text, str) else None
    return found if isinstance(found, int) else None


def _metaspace(step: Mapping[str, Any], parsed: Mapping[str, Any]) -> Spelling:
    mark = step.get("replacement", WORD_START)
    model = parsed.get("model")
    fallback = isinstance(model, dict) and bool(model.get("byte_fallback"))
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    return Spelling(piece_bytes(mark, byte_fallback=fallback), byte_token, strips_leading_space=scheme != "never")


def _sentencepiece(steps: list[dict[str, Any]]) -> Spelling:
    pattern, content = steps[0].get("pattern"), steps[0].get("content")
    mark = pattern.get("String") if isinstance(pattern, dict) else None
    if not isinstance(mark, str) or not isinstance(content, str):
        raise UnsupportedModelError(f"{TOKENIZER_FILE}: the decoder's Replace of {pattern!r} is not supported")
    strip = steps[3] if len(steps) > 3 else {"content": " ", "start": 0, "stop": 0}
    if strip.get("content") != " " or strip.get("start") not in (0, 1) or strip.get("stop") != 0:
        raise UnsupportedModelError(f"{TOKENIZER_FILE}: the decoder's Strip {strip!r} is not supported")
    return Spelling(piece_bytes(mark, content), byte_token, strips_leading_space=strip["start"] == 1)
