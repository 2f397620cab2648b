"""Pieces against the `sentencepiece` library: a model that it trains gives the same ids through us, as both files."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.models.imported import TokenizerSource
from cacheir_importers.gguf.piece_tokenizers import load_sentencepiece
from cacheir_importers.gguf.tokenizer_arrays import read_tokenizer
from cacheir_importers.huggingface.tokenizer_model import load_model, model_source
from cacheir_importers.library_tokenizer import LibraryTokenizer

ALPHABET = "abcdehilorst THE.,'\n\té中😀"
TEXTS = st.one_of(st.text(ALPHABET, max_size=40), st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
WORDS = "the there hat heat hello other ethos rest toast store  the lord the chair tried hard , and lost".split(" ")


def train(folder: Path, **options: object) -> Path:
    lines = [" ".join(WORDS[start:] + WORDS[:start]) for start in range(len(WORDS))] * 3
    usual = {
        "vocab_size": 330,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "control_symbols": ["<|x|>"],
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "m"),
        hard_vocab_limit=False,
        minloglevel=2,
        **{**usual, **options},
    )
    return folder / "m.model"


Three = tuple[sentencepiece.SentencePieceProcessor, LibraryTokenizer, LibraryTokenizer]


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no-prefix"])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Three:
    """The library, ours from tokenizer.model, and ours from the same pieces as a GGUF file has them."""
    path = train(tmp_path_factory.mktemp("spm"), add_dummy_prefix=request.param)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    count = theirs.get_piece_size()
    kinds = [
        6 if theirs.is_byte(n) else 3 if theirs.is_control(n) else 2 if theirs.is_unknown(n) else 1
        for n in range(count)
    ]
    source = read_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [theirs.id_to_piece(n) for n in range(count)],
            "tokenizer.ggml.scores": [theirs.get_score(n) for n in range(count)],
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.unknown_token_id": theirs.unk_id(),
            "tokenizer.ggml.add_space_prefix": request.param,
        },
        "a.gguf",
    )
    assert isinstance(source, TokenizerSource)
    return theirs, load_model(model_source(path, [], [])), load_sentencepiece(source)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_b27_the_librarys_ids(three: Three, text: str) -> None:
    theirs, from_model, from_gguf = three
    for value in (text, "hello", " hello", "  hello", "\n", "\t", "", "<|x|>", "the  <s> hat\u2581"):
        ids = theirs.encode(value)
        assert from_model.encode(value) == ids
        assert from_gguf.encode(value) == ids
        if "\u2581" not in value:  # the library itself writes it back as a space
            assert from_gguf.decode(ids) == value


def test_they_join_pieces_at_all(three: Three) -> None:
    theirs, from_model, _ = three
    assert len(from_model.encode("the other")) <= 4 and theirs.get_piece_size() > 300
    assert from_model.special_ids == {n for n in range(20) if theirs.is_control(n) or theirs.is_unknown(n)}


NORMALISED = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}
# What the trainer is told, and so what a model does to texts.
OTHERS: dict[str, dict[str, object]] = {
    "unigram": {"model_type": "unigram"},
    "unigram-no-prefix": {"model_type": "unigram", "add_dummy_prefix": False},
    "unigram-normalised": {"model_type": "unigram", **NORMALISED},
    "unigram-folded-no-bytes": {
        "model_type": "unigram",
        "byte_fallback": False,
        "vocab_size": 60,
        **NORMALISED,
        "normalization_rule_name": "nmt_nfkc_cf",
    },
    "unigram-own-pieces": {"model_type": "unigram", "user_defined_symbols": ["<tool>", "the lord"], **NORMALISED},
    "bpe-normalised": NORMALISED,
    "bpe-folded": {**NORMALISED, "normalization_rule_name": "nfkc_cf"},
}
# Characters that a map changes, joins with their neighbours or drops.
MAPPED = st.text("abThe .,\t\n\u00a0\u3000ﬁ①½²ｆＡſ\u0322\u0301\u200bé中😀", max_size=24)


@pytest.fixture(scope="module", params=OTHERS)
def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[sentencepiece.SentencePieceProcessor, LibraryTokenizer]:
    path = train(tmp_path_factory.mktemp("spm"), **OTHERS[request.param])
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), load_model(model_source(path, [], []))


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(TEXTS, MAPPED), words=st.lists(st.sampled_from(WORDS), max_size=9))
def test_unigram_models_and_normalisers(
    other: tuple[sentencepiece.SentencePieceProcessor, LibraryTokenizer], text: str, words: list[str]
) -> None:
    theirs, ours = other
    for value in (text, " ".join(words), "  hello  the<tool>hat ", "²\u0322 ①", " ", ""):
        ids = theirs.encode(value)
        assert ours.encode(value) == ids, theirs.encode_as_pieces(value)
        if theirs.unk_id() not in ids and "\u2581" not in value:
            assert ours.decode(ids) == theirs.decode(ids)


def test_control_tokens_in_a_text_are_text(
    other: tuple[sentencepiece.SentencePieceProcessor, LibraryTokenizer],
) -> None:
    theirs, ours = other
    for value in ("<|x|>", "hat<s>hat", "</s>", "<0x41>"):
        ids = ours.encode(value)
        control = [token for token in ids if theirs.is_control(token)]
        assert not control
        if theirs.unk_id() not in ids:
            assert ours.decode(ids) == theirs.decode(theirs.encode(value))
