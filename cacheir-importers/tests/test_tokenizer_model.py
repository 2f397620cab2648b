"""tokenizer.model and tekken.json in a folder without tokenizer.json: ids, control tokens, refusals, damage."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import ImportedModel
from cacheir.plugins import resolve
from cacheir_importers import plugin
from cacheir_importers.character_map import CharacterMap
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.huggingface.sentencepiece_file import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    parse_model,
)
from cacheir_importers.library_tokenizer import LibraryTokenizer

Build = Callable[..., Path]
Edit = Callable[..., None]

BYTES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
PIECES = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    *BYTES,
    *((text, -float(rank), NORMAL) for rank, text in enumerate(["▁", "h", "i", "hi", "▁hi"])),
    ("<tool>", 0.0, USER_DEFINED),
]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def model_bytes(pieces: Any = PIECES, trainer: Any = None, normalizer: Any = None) -> bytes:
    """A SentencePiece model as its library writes one; ``trainer`` and ``normalizer`` map field numbers to values."""
    content = b""
    for text, score, kind in pieces:
        inner = field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, kind)
        content += field(1, inner)
    sections = ((2, {3: 2, **(trainer or {})}), (3, {3: 1, 4: 0, **(normalizer or {})}))
    for number, values in sections:
        content += field(number, b"".join(field(key, value) for key, value in values.items()))
    return content


@pytest.fixture
def model_folder(folder: Build) -> Build:
    """The tiny folder with another tokenizer file instead of tokenizer.json."""

    def build(name: str, content: bytes) -> Path:
        path = folder()
        (path / "tokenizer.json").unlink()
        (path / "tokenizer_config.json").write_text("{}")
        (path / "special_tokens_map.json").unlink(missing_ok=True)
        (path / name).write_bytes(content)
        return path

    return build


def load(model: ImportedModel) -> LibraryTokenizer:
    assert model.tokenizer is not None
    specs = {spec.name: spec for spec in plugin.cacheir_register_tokenizers()}
    tokenizer = resolve(specs[model.tokenizer.kind].load)(model.tokenizer)
    assert isinstance(tokenizer, LibraryTokenizer)
    return tokenizer


def test_sentencepiece(model_folder: Build) -> None:
    model = import_folder(model_folder("tokenizer.model", model_bytes()), {})
    tokenizer = load(model)
    texts = [text for text, _, _ in PIECES]
    assert [texts[token] for token in tokenizer.encode("hi hi<tool>\n")] == ["▁hi", "▁hi", "<tool>", "▁", "<0x0A>"]
    assert tokenizer.decode(tokenizer.encode(" hi\nhi")) == " hi\nhi"
    assert tokenizer.special_ids == {0, 1, 2} and tokenizer.vocab_size == len(PIECES)
    generation = model.generation
    assert (generation.bos_id, generation.add_bos, 2 in generation.eos_ids) == (1, True, True)
    assert generation.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert "tokenizer_config.json does not say add_bos_token, and true was assumed" in model.notes


def test_tokens_of_the_configuration_come_behind_the_pieces(model_folder: Build, edit: Edit) -> None:
    path = model_folder("tokenizer.model", model_bytes())
    added = {str(len(PIECES)): {"content": "<|im_end|>", "special": True}}
    edit(path / "tokenizer_config.json", added_tokens_decoder=added, eos_token="<|im_end|>", add_bos_token=False)
    model = import_folder(path, {})
    tokenizer = load(model)
    assert tokenizer.token_id("<|im_end|>") == len(PIECES) and len(PIECES) in tokenizer.special_ids
    assert len(PIECES) not in tokenizer.encode("<|im_end|>")
    assert model.generation.eos_ids[-1] == len(PIECES) and not model.generation.add_bos


@pytest.mark.parametrize(
    ("trainer", "normalizer", "problem"),
    [
        ({3: 3}, {}, "of the type word; supported: BPE, unigram"),
        ({3: 9}, {}, "of the type 9"),
        ({24: 1}, {}, "treat_whitespace_as_suffix"),
        ({24: 1}, {5: 0}, "treat_whitespace_as_suffix, escape_whitespaces = false"),
    ],
)
def test_models_that_do_more_are_refused_by_name(
    model_folder: Build, trainer: Any, normalizer: Any, problem: str
) -> None:
    path = model_folder("tokenizer.model", model_bytes(trainer=trainer, normalizer=normalizer))
    with pytest.raises(UnsupportedModelError, match=rf"tokenizer\.model .*{problem}") as caught:
        import_folder(path, {})
    assert caught.value.hint == "put the model's tokenizer.json beside it"


UNIGRAM = [
    *PIECES[:3],
    *BYTES,
    *((text, -1.0 - rank, NORMAL) for rank, text in enumerate(["▁", "h", "i", "hi", "▁hi", "<", "s", ">", "▁<"])),
    ("<tool>", 0.0, USER_DEFINED),
]


def test_a_unigram_model_takes_the_best_sum(model_folder: Build) -> None:
    tokenizer = load(import_folder(model_folder("tokenizer.model", model_bytes(UNIGRAM, {3: 1})), {}))
    texts = [text for text, _, _ in UNIGRAM]

    def pieces(text: str) -> list[str]:
        return [texts[token] for token in tokenizer.encode(text)]

    # "▁" and "hi" cost 1 + 4, "▁hi" costs 5: of equal sums the library takes one piece; "h" and "i" cost 2 + 3.
    assert pieces("hi<tool>hii") in (["▁hi", "<tool>", "hi", "i"], ["▁", "hi", "<tool>", "hi", "i"])
    assert pieces("\n") == ["▁", "<0x0A>"]
    assert tokenizer.special_ids == {0, 1, 2}


def test_control_tokens_and_bytes_in_text_stay_text(model_folder: Build) -> None:
    tokenizer = load(import_folder(model_folder("tokenizer.model", model_bytes(UNIGRAM, {3: 1})), {}))
    for text in ("<s>", "hi <s> hi", "<0x41>", "<unk></s>"):
        ids = tokenizer.encode(text)
        assert tokenizer.special_ids.isdisjoint(ids) and tokenizer.decode(ids) == text
    assert tokenizer.encode("<s>hi", special=True)[0] == 1


def test_a_unigram_model_without_an_unknown_piece(model_folder: Build) -> None:
    path = model_folder("tokenizer.model", model_bytes(UNIGRAM[1:], {3: 1}))
    with pytest.raises(MalformedModelError, match=r"tokenizer\.model: a unigram model needs an unknown piece"):
        load(import_folder(path, {}))


def test_unused_pieces_of_a_unigram_model(model_folder: Build) -> None:
    path = model_folder("tokenizer.model", model_bytes([*UNIGRAM, ("x", -1.0, UNUSED)], {3: 1}))
    with pytest.raises(UnsupportedModelError, match="unused pieces"):
        import_folder(path, {})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"xx", "its trie has 0 bytes"),
        (struct.pack("<I", 400) + bytes(40), "its trie has 400 bytes"),
        (struct.pack("<I", 6) + bytes(40), "its trie has 6 bytes"),
        (struct.pack("<I", 0) + bytes(40), "its trie has 0 bytes"),
    ],
)
def test_a_damaged_character_map(model_folder: Build, content: bytes, problem: str) -> None:
    path = model_folder("tokenizer.model", model_bytes(normalizer={2: content}))
    with pytest.raises(MalformedModelError, match=rf"tokenizer\.model: precompiled_charsmap .*{problem}"):
        load(import_folder(path, {}))


@given(st.binary(max_size=400), st.text(max_size=20))
def test_a_character_map_of_any_bytes_maps_or_is_refused(units: bytes, text: str) -> None:
    trie = units[: len(units) // 4 * 4]
    try:
        made = CharacterMap(struct.pack("<I", len(trie)) + trie + b"ab\0c\0", "tokenizer.model").apply(text)
    except MalformedModelError as error:
        assert "tokenizer.model: precompiled_charsmap" in str(error)
    else:
        assert len(made) <= 2 * len(text)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no pieces"),
        (b"\x0a", "ends at byte 1, inside a number"),
        (b"\x0a\xff\xff\xff\xff\x0f", "needs 4294967295 bytes, and 0 are left"),
        (b"\x0b", "unknown wire type 3"),
        (b"\xff" * 11, "longer than ten bytes"),
        (b"\x08\x01", "a number stands where a message must be"),
        (field(1, field(1, b"\xff")), "piece 0 is not UTF-8"),
        (field(1, field(1, 3)), "piece 0 has a field of a wrong type"),
    ],
)
def test_a_damaged_model(content: bytes, problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        parse_model(content, "tokenizer.model")


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 10_000))
def test_damage_anywhere_is_an_error_of_a_model_or_none(changes: list[tuple[int, int]], end: int) -> None:
    good = bytearray(model_bytes(PIECES[:40]))
    for place, value in changes:
        good[place % len(good)] = value
    try:
        parse_model(bytes(good[: end % (len(good) + 1)]), "tokenizer.model")
    except MalformedModelError as error:
        assert "tokenizer.model" in str(error)


WORDS = [*(bytes([byte]) for byte in range(256)), b"he", b"ll", b"llo", b"hello", " é".encode()]
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+"


def tekken(**changes: Any) -> bytes:
    words = [{"rank": rank, "token_bytes": base64.b64encode(word).decode()} for rank, word in enumerate(WORDS)]
    config = {"pattern": PATTERN, "default_vocab_size": 256 + 260, "default_num_special_tokens": 256}
    values: dict[str, Any] = {"config": config, "vocab": words}
    config.update({key: value for key, value in changes.items() if key in config})
    values.update({key: value for key, value in changes.items() if key not in config})
    return json.dumps(values).encode()


def test_tekken(model_folder: Build) -> None:
    model = import_folder(model_folder("tekken.json", tekken()), {})
    tokenizer = load(model)
    # The last word is beyond the size of the vocabulary.
    assert tokenizer.encode("hello é") == [256 + 259, 256 + 32, 256 + 0xC3, 256 + 0xA9]
    assert tokenizer.vocab_size == 516 and tokenizer.special_ids == frozenset(range(256))
    assert tokenizer.token_id("[INST]") == 3 and tokenizer.token_id("<SPECIAL_255>") == 255
    assert tokenizer.encode("[INST]hello", special=True) == [3, 515]
    ids = tokenizer.encode("[INST]")
    assert tokenizer.special_ids.isdisjoint(ids) and tokenizer.decode(ids) == "[INST]"
    assert (model.generation.bos_id, model.generation.add_bos) == (1, True) and 2 in model.generation.eos_ids


def test_tekken_lists_its_control_tokens(model_folder: Build) -> None:
    named = [{"rank": 7, "token_str": "<tool>", "is_control": True}, {"rank": 1, "token_str": "<s>"}]
    tokenizer = load(import_folder(model_folder("tekken.json", tekken(special_tokens=named)), {}))
    assert tokenizer.token_id("<tool>") == 7 and tokenizer.token_id("[INST]") is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"config": None}, "'config' is missing"),
        ({"pattern": 3}, "'pattern' must be text"),
        ({"pattern": ""}, "'config.pattern' must be text of at most"),
        ({"pattern": "("}, "is refused by the tokenizers library"),
        ({"default_vocab_size": 10_000}, "needs more than the 261 words"),
        ({"default_num_special_tokens": 3}, "must be a whole number from 256"),
        ({"vocab": {}}, "'vocab' must be a list"),
        ({"vocab": [{"rank": 0, "token_bytes": "AA=="}]}, "the first 256 words must be the single bytes"),
        ({"vocab": [{"rank": 1, "token_bytes": "AA=="}]}, r"vocab\[0\] must have 'rank' 0"),
        ({"vocab": [{"rank": 0, "token_bytes": "!"}]}, r"vocab\[0\] is not base64"),
        ({"special_tokens": [{"rank": 256, "token_str": "x"}]}, r"special_tokens\[0\] must have a 'rank' below 256"),
        ({"special_tokens": [{"rank": n, "token_str": "x"} for n in (0, 1)]}, "has 'x' twice, as 0 and 1"),
        ({"special_tokens": [{"rank": 0, "token_str": "he"}]}, "'he' is a word and a control token"),
    ],
)
def test_a_damaged_tekken(model_folder: Build, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedModelError, match=rf"tekken\.json.*{problem}"):
        load(import_folder(model_folder("tekken.json", tekken(**changes)), {}))
