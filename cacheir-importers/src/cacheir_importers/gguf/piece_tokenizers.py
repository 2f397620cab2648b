"""Builds the tokenizers of GGUF files that are no byte-level BPE: SentencePiece pieces, and WordPiece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from cacheir.errors import MalformedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.byte_fallback import WORD_START, byte_token, piece_bytes
from cacheir_importers.library_tokenizer import LibraryTokenizer
from cacheir_importers.sentencepiece import TextRules, build_bpe, build_merged, unique_ids

_TOKENS = "tokenizer.ggml.tokens"
_CONTINUES = "##"
# Merges of Gemma 4 never join a line break with anything else; splitting there keeps words short.
_LINES = r"[^\n]+|\n+"


def load_sentencepiece(source: TokenizerSource) -> LibraryTokenizer:
    """The tokenizer of pieces that ``read_tokenizer`` described, by their scores or by merges.

    MalformedModelError where its arrays make none.
    """
    data: Mapping[str, Any] = source.data
    common = {key: data[key] for key in ("special", "added", "unknown")}
    common["rules"] = TextRules(space_prefix=data["space_prefix"])
    if "scores" in data:
        return build_bpe(data["tokens"], data["scores"], pieces=data["pieces"], place=_TOKENS, **common)
    split = pre_tokenizers.Split(Regex(_LINES), "isolated")
    vocabulary = unique_ids(data["tokens"], _TOKENS)
    return build_merged(vocabulary, list(_pairs(data["merges"])), split=split, place=_TOKENS, **common)


def _pairs(merges: list[str]) -> Iterator[tuple[str, str]]:
    for number, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise MalformedModelError(f"tokenizer.ggml.merges[{number}] {merge!r} is not two tokens")
        yield left, right


def load_wordpiece(source: TokenizerSource) -> LibraryTokenizer:
    """The WordPiece tokenizer that ``read_tokenizer`` described.

    A GGUF file marks the pieces that begin a word; the library marks those that go on with one.
    """
    tokens: list[str] = source.data["tokens"]
    special: list[int] = source.data["special"]
    control, unknown = set(special), source.data["unknown"]
    texts = [text if token in control else _library_text(text) for token, text in enumerate(tokens)]
    vocabulary = unique_ids(texts, _TOKENS)
    library = Tokenizer(models.WordPiece(vocabulary, unk_token=texts[unknown], max_input_chars_per_word=10_000))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens([AddedToken(tokens[token], special=True, normalized=False) for token in special])
    return LibraryTokenizer(
        library,
        vocab_size=len(tokens),
        literal={token: tokens[token] for token in special},
        control=special,
        to_bytes=lambda text: piece_bytes(byte_fallback=False)(_file_text(text)),
        from_byte=byte_token,
        unknown=unknown,
        strips_leading_space=True,
    )


def _library_text(text: str) -> str:
    return text[1:] if text.startswith(WORD_START) else _CONTINUES + text


def _file_text(text: str) -> str:
    return text[len(_CONTINUES) :] if text.startswith(_CONTINUES) else WORD_START + text
