"""The tokenizer of a folder that has ``tekken.json`` (Mistral) and no ``tokenizer.json``.

The file lists byte strings by rank. Neighbours are joined while the joined string is in the list, the lowest rank
first, as in tiktoken; ids of control tokens come before all others. Source: mistral-common's ``tekken.py``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from cacheir.errors import MalformedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.byte_level import BYTE_CHARACTERS, from_bytes, to_bytes
from cacheir_importers.fields import Fields
from cacheir_importers.json_files import parse_object, read_file
from cacheir_importers.library_tokenizer import LibraryTokenizer
from cacheir_importers.sentencepiece import ordered_merges, unique_ids

TEKKEN_FILE = "tekken.json"
TEKKEN_KIND = "tekken"
_MOST_BYTES = 64 << 20
_MOST_TOKENS = 1 << 22
_MOST_PATTERN = 10_000
# Control tokens of files that list none (version 3), by id; the rest of their places are called <SPECIAL_20>, ...
_CONTROL_V3 = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


@dataclass(frozen=True)
class Tekken:
    """``words`` by rank, cut to the size of the vocabulary; ``control`` by id, which come first."""

    pattern: str
    words: tuple[bytes, ...]
    control: tuple[str, ...]

    @property
    def ids(self) -> dict[str, int]:
        """Text -> id of each control token."""
        return {text: token for token, text in enumerate(self.control)}

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.control) + len(self.words)


def read_tekken(path: Path) -> tuple[Tekken, bytes]:
    """The tokenizer at ``path`` and the file's bytes; MalformedModelError names the field that is wrong."""
    content = read_file(path, place=TEKKEN_FILE, limit=_MOST_BYTES)
    parsed = parse_object(content, place=TEKKEN_FILE)
    config = Fields(parsed, TEKKEN_FILE).section("config")
    if config is None:
        raise MalformedModelError(f"{TEKKEN_FILE}: field 'config' is missing")
    pattern = config.text_or("pattern", None)
    if pattern is None or not 0 < len(pattern) <= _MOST_PATTERN:
        raise MalformedModelError(f"{TEKKEN_FILE}: 'config.pattern' must be text of at most {_MOST_PATTERN} characters")
    size = config.whole("default_vocab_size", most=_MOST_TOKENS)
    reserved = config.whole("default_num_special_tokens", least=256, most=size) if size >= 256 else 0
    words = _words(parsed.get("vocab"))
    if not reserved or len(words) < size - reserved:
        raise MalformedModelError(
            f"{TEKKEN_FILE}: a vocabulary of {size} ids with {reserved} control tokens needs more than the"
            f" {len(words)} words that are there"
        )
    return Tekken(pattern, words[: size - reserved], _control(parsed.get("special_tokens"), reserved)), content


def _words(vocab: object) -> tuple[bytes, ...]:
    if not isinstance(vocab, list) or len(vocab) > _MOST_TOKENS:
        raise MalformedModelError(f"{TEKKEN_FILE}: 'vocab' must be a list of at most {_MOST_TOKENS} words")
    words = []
    for rank, word in enumerate(vocab):
        encoded = word.get("token_bytes") if isinstance(word, dict) else None
        if not isinstance(encoded, str) or word.get("rank") != rank:
            raise MalformedModelError(f"{TEKKEN_FILE}: vocab[{rank}] must have 'rank' {rank} and 'token_bytes'")
        try:
            words.append(base64.b64decode(encoded, validate=True))
        except (binascii.Error, ValueError) as error:
            raise MalformedModelError(f"{TEKKEN_FILE}: vocab[{rank}] is not base64: {error}") from error
    if not {bytes([byte]) for byte in range(256)} <= set(words[:256]):
        raise MalformedModelError(f"{TEKKEN_FILE}: the first 256 words must be the single bytes")
    return tuple(words)


def _control(listed: object, reserved: int) -> tuple[str, ...]:
    named = dict(enumerate(_CONTROL_V3))
    if listed is not None:
        if not isinstance(listed, list):
            raise MalformedModelError(f"{TEKKEN_FILE}: 'special_tokens' must be a list")
        named = {}
        for place, token in enumerate(listed):
            rank, text = (token.get("rank"), token.get("token_str")) if isinstance(token, dict) else (None, None)
            if type(rank) is not int or not 0 <= rank < reserved or not isinstance(text, str) or not text:
                raise MalformedModelError(
                    f"{TEKKEN_FILE}: special_tokens[{place}] must have a 'rank' below {reserved} and a 'token_str'"
                )
            named[rank] = text
    control = tuple(named.get(token, f"<SPECIAL_{token}>") for token in range(reserved))
    unique_ids(control, f"{TEKKEN_FILE}: special_tokens")
    return control


def load_tekken(source: TokenizerSource) -> LibraryTokenizer:
    """The tokenizer of ``source.files["tekken.json"]``."""
    tekken, _ = read_tekken(source.files[TEKKEN_FILE])
    words = [from_bytes(word) for word in tekken.words]
    ranks = [-float(rank) for rank in range(len(words))]
    merges = list(ordered_merges(words, ranks, range(len(words)), TEKKEN_FILE))
    vocabulary: Mapping[str, int] = unique_ids(words, f"{TEKKEN_FILE}: vocab")
    first = len(tekken.control)
    ids = {text: rank + first for text, rank in vocabulary.items()}
    try:
        # Control tokens have their places in the vocabulary from the start, so that they keep their ids.
        library = Tokenizer(models.BPE({**_spelt(tekken, ids), **ids}, merges, ignore_merges=True))
        split: Any = pre_tokenizers.Split(Regex(tekken.pattern), "isolated")
    except Exception as error:  # the library raises nothing narrower
        raise MalformedModelError(f"{TEKKEN_FILE} is refused by the tokenizers library: {error}") from error
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in tekken.control])
    return LibraryTokenizer(
        library,
        vocab_size=tekken.size,
        literal=dict(enumerate(tekken.control)),
        control=range(first),
        to_bytes=to_bytes,
        from_byte=BYTE_CHARACTERS.__getitem__,
    )


def _spelt(tekken: Tekken, ids: Mapping[str, int]) -> dict[str, int]:
    clash = next((text for text in tekken.control if text in ids), None)
    if clash is not None:
        raise MalformedModelError(f"{TEKKEN_FILE}: {clash!r} is a word and a control token")
    return tekken.ids
