"""The tokenizer rebuilt from GGUF metadata: splits by name, control tokens, bytes (cases B23, B25, B28, D14)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from cacheir.errors import MalformedModelError, RequestError, UnsupportedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.byte_level import BYTE_CHARACTERS, from_bytes, to_bytes
from cacheir_importers.gguf.pre_tokenizers import PRE_TOKENIZERS
from cacheir_importers.gguf.tokenizer import load_tokenizer
from cacheir_importers.gguf.tokenizer_arrays import read_tokenizer
from cacheir_importers.library_tokenizer import LibraryTokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def metadata(pre: str | None = "gpt-2", merges: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    merges = ["h e", "l l", "he ll"] if merges is None else merges
    tokens = [*SPECIAL, *BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in merges), "<tool>", "<é x>"]
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 5) + [4, 4],
        "tokenizer.ggml.merges": merges,
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def build(pre: str | None = "gpt-2", merges: list[str] | None = None, **changes: Any) -> LibraryTokenizer:
    source = read_tokenizer(metadata(pre, merges, **changes), "a.gguf")
    assert source is not None
    carried = json.loads(json.dumps(source.data))  # an artifact carries it as JSON
    return load_tokenizer(TokenizerSource(kind=source.kind, data=carried))


@pytest.fixture(scope="module")
def tokenizer() -> LibraryTokenizer:
    return build()


# Text -> pieces, as the original tokenizers split it.
PIECES = {
    "qwen2": {
        "a->b 12345678": ["a", "->", "b", " ", "1", "2", "3", "4", "5", "6", "7", "8"],
        "I'LL (x):\n": ["I", "'LL", " (", "x", "):\n"],
    },
    "llama-bpe": {
        "a->b 12345678": ["a", "->", "b", " ", "123", "456", "78"],
        "I'LL (x):\n": ["I", "'LL", " (", "x", "):\n"],
    },
    "gpt-2": {
        "a->b 12345678": ["a", "->", "b", " 12345678"],
        "I'LL (x):\n": ["I", "'", "LL", " (", "x", "):", "\n"],
    },
    "smollm": {"a->b 12345678": ["a", "->", "b", " ", "1", "2", "3", "4", "5", "6", "7", "8"]},
    "starcoder": {"a->b 12": ["a", "->", "b", " ", "1", "2"]},
    "refact": {"a->b 12": ["a", "->", "b", " ", "1", "2"]},
    "default": {"a->b 12345678": ["a", "->", "b", " ", "123", "456", "78"]},
    "falcon": {"a->b 12345678": ["a", "->", "b", " ", "123", "456", "78"]},
    "deepseek-coder": {"a b\n12": ["a", " b", "\n", "1", "2"]},
    "deepseek-llm": {"a b\n12, 中文": ["a", " b", "\n", "12", ",", " ", "中文"]},
    "deepseek-v3": {"a b\n1234, don't": ["a", " b", "\n", "123", "4", ",", " don", "'t"]},
    "command-r": {"a->b 12": ["a", "->", "b", " ", "1", "2"]},
    "mpt": {"a->b 12": ["a", "->", "b", " 12"]},
    "phi-2": {"I'LL 12": ["I", "'", "LL", " 12"]},
    "qwen35": {"a\u0301b->12": ["a\u0301b", "->", "1", "2"]},
    "smaug-bpe": {"a->b 1234": ["a", "->", "b", " ", "123", "4"]},
    "tekken": {"helloWorld/\n12": ["hello", "World", "/\n", "1", "2"]},
    "gpt-4o": {"helloWorld's/\n12": ["hello", "World's", "/\n", "12"]},
}


@pytest.mark.parametrize(("pre", "text"), [(pre, text) for pre, texts in PIECES.items() for text in texts])
def test_b25_pieces(pre: str, text: str) -> None:
    library = build(pre)._library
    pieces = [to_bytes(piece).decode() for piece, _ in library.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == PIECES[pre][text]


AWKWARD = [
    "  x\n\n y",
    "日本語 한국어 中文",
    "👩‍👩‍👧‍👦 🇩🇪",
    "e\u0301 a\u0308",
    "a\u2029b",
    "Ⅷ½٣ 12 ３",
    "I'LL (x):\n",
    "\t\t \r\n",
]


@settings(max_examples=500, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_b25_the_library_splits_alike(text: str) -> None:
    """The pipelines that the models' own tokenizer.json files have, against the patterns that GGUF names stand for."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    by_digit = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    for pre, theirs in {"gpt-2": words, "smollm": by_digit, "starcoder": by_digit}.items():
        if pre not in _BUILT:
            _BUILT[pre] = build(pre)
        for value in (text, *AWKWARD):
            assert _BUILT[pre]._library.pre_tokenizer.pre_tokenize_str(value) == theirs.pre_tokenize_str(value)


def test_without_types_the_named_tokens_are_control_tokens() -> None:
    found = build(**{"tokenizer.ggml.token_type": None, "tokenizer.ggml.eos_token_id": 2})
    assert found.special_ids == {2} and found.encode("<|im_end|>", special=True) == [2]


@pytest.mark.parametrize("pre", ["unknown-x", "qwen4", "", 7, ["smollm"]])
def test_b25_an_unknown_split_is_refused_by_name(pre: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(f"tokenizer.ggml.pre {pre!r} is not supported")):
        read_tokenizer(metadata(pre), "a.gguf")


def test_b25_a_missing_split_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre is missing"):
        read_tokenizer(metadata(None), "a.gguf")


@pytest.mark.parametrize("model", ["t5", "rwkv", "none", "", 7])
def test_other_tokenizer_models_are_refused_by_name(model: Any) -> None:
    with pytest.raises(
        UnsupportedModelError, match=rf"tokenizer\.ggml\.model {model!r} is not supported; supported: gpt2"
    ):
        read_tokenizer(metadata(**{"tokenizer.ggml.model": model}), "a.gguf")


def test_merges_are_applied_in_order(tokenizer: LibraryTokenizer) -> None:
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("hello")] == [b"hell", b"o"]


def test_ignore_merges_makes_a_whole_word_one_token() -> None:
    whole = {"tokenizer.ggml.tokens": [*SPECIAL, *BYTE_CHARACTERS, "hello"], "tokenizer.ggml.token_type": None}
    assert build("llama-bpe", [], **whole).encode("hello") == [259]
    assert len(build("gpt-2", [], **whole).encode("hello")) == 5


def test_qwen2_composes_characters() -> None:
    assert build("qwen2").encode("e\u0301") == build("qwen2").encode("\u00e9")
    assert build("smollm").encode("e\u0301") != build("smollm").encode("\u00e9")


@pytest.mark.parametrize("text", ["<|im_end|>\n<|im_start|>system", "a<|im_end|>", "<|im_end|><|im_end|>"])
def test_b23_control_tokens_in_text_stay_text(tokenizer: LibraryTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.special_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == text
    special = tokenizer.encode(text, special=True)
    assert not tokenizer.special_ids.isdisjoint(special)
    assert tokenizer.decode(special, skip_special=False) == text
    assert tokenizer.encode(text) == ids  # asking for control tokens leaves no trace


def test_b23_a_look_alike_is_no_control_token(tokenizer: LibraryTokenizer) -> None:
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("<|im_\u200bend|>", special=True))


def test_b23_merges_cannot_spell_a_control_token() -> None:
    vocabulary = {
        "tokenizer.ggml.tokens": [*BYTE_CHARACTERS, "st", "sto", "stop"],
        "tokenizer.ggml.token_type": [1] * 258 + [3],
    }
    spelling = build(merges=["s t", "st o", "sto p"], **vocabulary)
    assert spelling.special_ids == {258}
    ids = spelling.encode("stop")
    assert 258 not in ids and spelling.decode(ids) == "stop"
    assert spelling.encode("stop", special=True) == [258]


def test_user_defined_tokens_are_text_of_their_own(tokenizer: LibraryTokenizer) -> None:
    ids = tokenizer.encode("a<tool>b<é x>")
    assert len(ids) == 4 and tokenizer.decode(ids) == "a<tool>b<é x>"
    assert tokenizer.token_bytes(ids[3]) == "<é x>".encode()


def test_ids_and_names(tokenizer: LibraryTokenizer) -> None:
    assert tokenizer.token_id("<|im_end|>") == 2 and tokenizer.token_id("nothing") is None
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.vocab_size == 264 == len(metadata()["tokenizer.ggml.tokens"])
    assert not tokenizer.strips_leading_space


def test_b21_ids_beyond_the_vocabulary_add_nothing(tokenizer: LibraryTokenizer) -> None:
    for token in (264, 10**6, 2**40, -1):
        assert tokenizer.token_bytes(token) == b""
    assert tokenizer.decode([*tokenizer.encode("hi"), 9999]) == "hi"


def test_b28_parts_of_a_character(tokenizer: LibraryTokenizer) -> None:
    ids = tokenizer.encode("😀")
    assert [tokenizer.token_bytes(token) for token in ids] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert tokenizer.decode(ids[:2]) == "\ufffd" and tokenizer.decode(ids) == "😀"


def test_b30_an_empty_text(tokenizer: LibraryTokenizer) -> None:
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""


def test_d14_half_a_surrogate_pair_is_the_requests_fault(tokenizer: LibraryTokenizer) -> None:
    with pytest.raises(RequestError, match="half a surrogate pair at character 1"):
        tokenizer.encode("a\ud800")


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",))), pre=st.sampled_from(sorted(PRE_TOKENIZERS)))
def test_bytes_of_tokens_are_the_text(text: str, pre: str) -> None:
    found = _BUILT[pre] = _BUILT.get(pre) or build(pre)
    ids = found.encode(text)
    joined = b"".join(map(found.token_bytes, ids))
    assert found.decode(ids) == joined.decode("utf-8", "replace")
    if not PRE_TOKENIZERS[pre].normalize:
        assert joined.decode() == text


_BUILT: dict[str, LibraryTokenizer] = {}


@given(st.binary())
def test_byte_characters_are_a_map_both_ways(raw: bytes) -> None:
    assert to_bytes(from_bytes(raw)) == raw and len(set(BYTE_CHARACTERS)) == 256


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokenizer.ggml.tokens": None}, r"'tokenizer\.ggml\.tokens' must be an array of strings"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "must be an array of strings"),
        ({"tokenizer.ggml.merges": None}, r"'tokenizer\.ggml\.merges' must be an array of strings"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "token_type has 2 entries, and there are 264 tokens"),
        ({"tokenizer.ggml.token_type": 3}, "token_type' must be an array of whole numbers"),
        ({"tokenizer.ggml.token_type": ["3"] * 264}, "token_type' must be an array of whole numbers"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        read_tokenizer(metadata(**changes), "a.gguf")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokenizer.ggml.merges": ["a b c"]}, r"merges\[0\] 'a b c' is not two tokens"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, "the tokenizers library refuses"),
        ({"tokenizer.ggml.tokens": [*SPECIAL, *BYTE_CHARACTERS, "a"], "tokenizer.ggml.token_type": None}, "'a' twice"),
    ],
)
def test_arrays_that_make_no_tokenizer(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        build(**changes)
