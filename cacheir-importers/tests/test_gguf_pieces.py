"""Tokenizers of pieces rebuilt from GGUF metadata: SentencePiece, WordPiece (cases B20, B23, B27)."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.gguf.piece_tokenizers import load_sentencepiece, load_wordpiece
from cacheir_importers.gguf.tokenizer_arrays import read_tokenizer
from cacheir_importers.gguf.writer import Typed
from cacheir_importers.library_tokenizer import LibraryTokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "h", "e", "l", "o", "a", "b", "<", "s", ">", "he", "ll", "llo", "hello", "▁hello", "▁b", "▁h", "▁▁"]
SCORES = array("f", [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))] + [0.0])
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, "<tool>"]
TYPES = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4]


def metadata(**changes: Any) -> dict[str, Any]:
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }
    return {key: value for key, value in values.items() if value is not None}


def build(**changes: Any) -> LibraryTokenizer:
    source = read_tokenizer(metadata(**changes), "a.gguf")
    assert source is not None
    carried = json.loads(json.dumps(source.data))  # an artifact carries it as JSON
    load = load_wordpiece if source.kind == "gguf-wordpiece" else load_sentencepiece
    return load(TokenizerSource(kind=source.kind, data=carried))


@pytest.fixture(scope="module")
def tokenizer() -> LibraryTokenizer:
    return build()


def pieces(tokenizer: LibraryTokenizer, text: str, *, special: bool = False) -> list[str]:
    return [TOKENS[token] for token in tokenizer.encode(text, special=special)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", "▁hello"),
        (" hello", "▁ ▁hello"),
        ("  hello", "▁▁ ▁hello"),
        ("a b", "▁ a ▁b"),
        ("", ""),
        ("\n", "▁ <0x0A>"),
        ("\t", "▁ <0x09>"),
        ("😀", "▁ <0xF0> <0x9F> <0x98> <0x80>"),
    ],
)
def test_b27_the_space_at_the_start(tokenizer: LibraryTokenizer, text: str, expected: str) -> None:
    assert pieces(tokenizer, text) == expected.split()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<s>hello", "<s> ▁hello"),
        ("<s> hello", "<s> ▁ ▁hello"),
        ("a<s> b", "▁ a <s> ▁ ▁b"),
        ("<s></s>", "<s> </s>"),
        ("<s>", "<s>"),
    ],
)
def test_b27_after_control_tokens(tokenizer: LibraryTokenizer, text: str, expected: str) -> None:
    assert pieces(tokenizer, text, special=True) == expected.split()


def test_b27_no_prefix_where_the_file_says_so() -> None:
    plain = build(add_space_prefix=False)
    assert pieces(plain, "hello b") == ["hello", "▁b"] and pieces(plain, " hello") == ["▁hello"]
    assert not plain.strips_leading_space
    assert plain.decode(plain.encode(" hello")) == " hello"


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_b27_decoding_token_by_token_is_decoding_at_once(text: str) -> None:
    """The joined bytes begin with the prefix, which decoding takes away again."""
    found = _BUILT.setdefault("llama", build())
    ids = found.encode(text)
    joined = b"".join(map(found.token_bytes, ids)).decode("utf-8")
    assert joined == (" " + text if text else "") and found.decode(ids) == text


_BUILT: dict[str, LibraryTokenizer] = {}


@pytest.mark.parametrize("text", ["<s>", "</s><s>hello", "a<s> b", "<unk>"])
def test_b23_control_tokens_in_text_stay_text(tokenizer: LibraryTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.special_ids == {0, 1, 2} and tokenizer.special_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == text


def test_bytes_and_user_defined_tokens(tokenizer: LibraryTokenizer) -> None:
    assert tokenizer.token_bytes(TOKENS.index("<0x0A>")) == b"\n"
    assert tokenizer.token_bytes(TOKENS.index("▁hello")) == b" hello"
    assert tokenizer.token_bytes(1) == b"" and tokenizer.token_id("<s>") == 1
    assert pieces(tokenizer, "hello<tool>") == ["▁hello", "<tool>"]


def test_better_scores_are_joined_first() -> None:
    """`he` and `el` compete in `hel`: the better score wins, whatever the ids."""
    tokens = ["<unk>", "h", "e", "l", "he", "el"]
    for scores, expected in (([0, 0, 0, 0, -1, -2], [4, 3]), ([0, 0, 0, 0, -2, -1], [1, 5])):
        changes = {"tokens": tokens, "token_type": [2, 1, 1, 1, 1, 1], "scores": array("f", scores)}
        assert build(**changes, add_space_prefix=False).encode("hel") == expected


def test_without_byte_tokens_what_is_not_known_is_the_unknown_token() -> None:
    few = {"tokens": ["<unk>", "▁", "h"], "token_type": [2, 1, 1], "scores": array("f", [0.0] * 3)}
    assert build(**few).encode("hx") == [1, 2, 0]


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"scores": None}, MalformedModelError, r"'tokenizer\.ggml\.scores' must be an array of numbers"),
        ({"scores": [1, 2]}, MalformedModelError, r"'tokenizer\.ggml\.scores' must be an array of numbers"),
        ({"scores": [1.0]}, MalformedModelError, "scores has 1 entries, and there are 278 tokens"),
        ({"scores": [float("nan")] * 278}, MalformedModelError, "a score of the tokenizer is not a finite number"),
        ({"tokens": ["a"] * 278}, MalformedModelError, "has 'a' twice, as 0 and 1"),
        ({"add_space_prefix": 1}, MalformedModelError, "must be true or false, not 1"),
        ({"remove_extra_whitespaces": True}, UnsupportedModelError, "remove_extra_whitespaces = true is not supported"),
        ({"precompiled_charsmap": [1]}, UnsupportedModelError, "precompiled_charsmap"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, Any], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        build(**changes)


@pytest.mark.parametrize(("said", "added"), [(True, True), (False, False), (None, True)])
def test_b20_bos_unless_the_file_says_no(gguf_file: Callable[..., Path], said: bool | None, added: bool) -> None:
    values = metadata(add_bos_token=said, scores=Typed("array of f32", SCORES))
    model = import_gguf(gguf_file({**values, "tokenizer.ggml.merges": None}), {})
    assert (model.generation.bos_id, model.generation.add_bos) == (1, added)


def test_pieces_by_merges() -> None:
    """As Gemma 4 has them: no scores, and a line break is joined with nothing else."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *BYTES, "▁", "h", "i", "hi", "▁hi", "\n", "\n\n"]
    types = [3, 3, 3, 3, *[6] * 256, *[1] * 7]
    merges = ["h i", "▁ hi", "\n \n"]
    found = build(model="gemma4", tokens=tokens, token_type=types, merges=merges, scores=None, unknown_token_id=3)
    assert [tokens[token] for token in found.encode("hi hi\n\n hi")] == ["hi", "▁hi", "\n\n", "▁hi"]
    with pytest.raises(MalformedModelError, match=r"merges\[0\] 'h i x' is not two tokens"):
        build(model="gemma4", tokens=tokens, token_type=types, merges=["h i x"], scores=None)


def test_word_pieces() -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "▁un", "▁a", "able", "s", "▁,"]
    found = build(model="bert", tokens=tokens, token_type=[3, 3, 3, 1, 1, 1, 1, 1], scores=None, unknown_token_id=1)
    assert [tokens[token] for token in found.encode("Unables, a x")] == ["▁un", "able", "s", "▁,", "▁a", "[UNK]"]
    assert found.decode(found.encode("unable a")) == "unable a"
    with pytest.raises(MalformedModelError, match="unknown_token_id' must name a token"):
        build(model="bert", tokens=tokens, token_type=None, scores=None, unknown_token_id=99)
