"""Tokenizers from tokenizer.json (cases B20, B21, B23, B27): spelling of bytes, control tokens, BOS, chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import ImportedModel, TokenizerSource
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.huggingface.tokenizer import load_tokenizer
from cacheir_importers.library_tokenizer import LibraryTokenizer

Build = Callable[..., Path]
Edit = Callable[..., None]


def sentencepiece(prefix: bool = True) -> Tokenizer:
    """A tokenizer as Llama 2 has it: SentencePiece BPE with byte fallback and, if asked, a dummy prefix."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for text in ["▁", "h", "e", "l", "o", "s", "<", ">", "a", "b", "he", "ll", "hell", "hello", "▁hello", "▁▁"]:
        vocabulary[text] = len(vocabulary)
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("▁", "▁")]
    library = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    decoder: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*decoder, decoders.Strip(" ", 1, 0)] if prefix else decoder)
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return library


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({text: number for number, text in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<|end|>", special=True)])
    library.add_tokens(["<tool>"])
    return library


def loaded(library: Tokenizer, path: Path, **data: Any) -> LibraryTokenizer:
    file = path / "tokenizer.json"
    library.save(str(file))
    return load_tokenizer(TokenizerSource(kind="huggingface", data=data, files={"tokenizer.json": file}))


B27 = ["hello", " hello", "  hello", "\n", "<s>hello", "<s> hello", "a<s> b", "", "\t", "😀", "a\u0301", "\0"]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("text", B27)
def test_b27_sentencepiece(tmp_path: Path, text: str, prefix: bool) -> None:
    library = sentencepiece(prefix)
    tokenizer = loaded(library, tmp_path)
    ids = tokenizer.encode(text, special=True)
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == library.decode(ids)
    joined = b"".join(map(tokenizer.token_bytes, ids))
    assert joined.decode() in (tokenizer.decode(ids), " " + tokenizer.decode(ids))
    assert tokenizer.strips_leading_space is prefix
    plain = tokenizer.encode(text)
    assert tokenizer.special_ids.isdisjoint(plain) and tokenizer.decode(plain) == text


def test_b27_bytes_are_bytes_and_never_their_names(tmp_path: Path) -> None:
    tokenizer = loaded(sentencepiece(), tmp_path)
    newline = tokenizer.token_id("<0x0A>")
    assert newline is not None and tokenizer.token_bytes(newline) == b"\n"
    ids = tokenizer.encode("😀")
    assert [tokenizer.token_bytes(token) for token in ids] == [b" ", b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert tokenizer.decode(ids[:3]) == "\ufffd"


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    for name, library in {"spm": sentencepiece, "bytes": byte_level}.items():
        if name not in _LOADED:
            _LOADED[name] = loaded(library(), tmp_path_factory.mktemp(name))
        ids = _LOADED[name].encode(text)
        assert _LOADED[name].decode(ids) == text
        assert _LOADED[name].special_ids.isdisjoint(ids)


_LOADED: dict[str, LibraryTokenizer] = {}


@pytest.mark.parametrize("scheme", ["always", "never", "first"])
@pytest.mark.parametrize("text", [text for text in B27 if text.isascii() and text.isprintable()])
def test_metaspace(tmp_path: Path, scheme: str, text: str) -> None:
    library = sentencepiece()
    library.normalizer = normalizers.Sequence([])
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    library.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer = loaded(library, tmp_path)
    ids = tokenizer.encode(text, special=True)
    assert tokenizer.decode(ids) == library.decode(ids)
    assert tokenizer.strips_leading_space is (scheme != "never")


def test_the_library_agrees_on_byte_level(tmp_path: Path) -> None:
    library = byte_level()
    tokenizer = loaded(library, tmp_path)
    for text in ["hello", "a<|end|>b<tool>", " x", "😀\n", ""]:
        ids = tokenizer.encode(text, special=True)
        assert ids == library.encode(text).ids
        assert tokenizer.decode(ids) == library.decode(ids)
        assert tokenizer.decode(ids, skip_special=False) == library.decode(ids, skip_special_tokens=False)
    assert tokenizer.special_ids == {256} and tokenizer.vocab_size == 258


def test_limits_of_training_batches_are_switched_off(tmp_path: Path) -> None:
    library = byte_level()
    library.enable_truncation(4)
    library.enable_padding(length=32)
    assert len(loaded(library, tmp_path).encode("x" * 10)) == 10


def test_b21_ids_with_gaps(tmp_path: Path) -> None:
    values = json.loads(byte_level().to_str())
    values["model"]["vocab"]["zz"] = 900
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    files = {"tokenizer.json": tmp_path / "tokenizer.json"}
    tokenizer = load_tokenizer(TokenizerSource(kind="huggingface", files=files))
    assert tokenizer.vocab_size == 901
    assert (tokenizer.token_bytes(900), tokenizer.token_bytes(500), tokenizer.token_bytes(901)) == (b"zz", b"", b"")


def test_tokens_that_only_the_configuration_has(folder: Build, edit: Edit) -> None:
    path = folder()
    added = {"300": {"content": "<extra>", "special": True}, "301": {"content": "<word>", "special": False}}
    edit(path / "tokenizer_config.json", added_tokens_decoder=added, additional_special_tokens=["<extra>", "the"])
    source = import_folder(path, {}).tokenizer
    assert source is not None
    tokenizer = load_tokenizer(source)
    assert "the tokenizer has 302 ids and the model 300: the ids above have no weights" in import_folder(path, {}).notes
    the = tokenizer.token_id("the")
    assert tokenizer.encode("<extra><word>", special=True) == [300, 301]
    assert tokenizer.special_ids >= {0, 1, 2, 300} and 301 not in tokenizer.special_ids
    assert tokenizer.vocab_size == 302 and (the is None or the in tokenizer.special_ids)
    edit(path / "tokenizer_config.json", added_tokens_decoder={"400": {"content": "<extra>", "special": True}})
    source = import_folder(path, {}).tokenizer
    assert source is not None
    with pytest.raises(MalformedModelError, match="the token '<extra>' the id 400"):
        load_tokenizer(source)


def test_control_tokens_keep_their_flags(tmp_path: Path) -> None:
    library = byte_level()
    library.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True)])
    library.add_tokens([AddedToken("<end>", special=False, rstrip=True)])
    tokenizer = loaded(library, tmp_path, special_tokens=["<mask>", "<end>", "absent"])
    assert tokenizer.special_ids == {256, 258, 259} and tokenizer.token_id("absent") is None
    assert tokenizer.encode("a <mask>", special=True) == [tokenizer.token_id("a"), 258]
    assert tokenizer.encode("<end> a", special=True) == [259, tokenizer.token_id("a")]
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("<end>"))


def post_processor(library: Tokenizer, *, before: str = "", after: str = "") -> None:
    pieces = [*([before] if before else []), "$A", *([after] if after else [])]
    special = [(text, library.token_to_id(text)) for text in (before, after) if text]
    library.post_processor = processors.TemplateProcessing(single=" ".join(pieces), special_tokens=special)


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("said", [True, False, None])
def test_b20_bos_is_added_where_the_post_processor_does(
    folder: Build, edit: Edit, said: bool | None, added: bool
) -> None:
    path = folder()
    edit(path / "tokenizer_config.json", add_bos_token=said)
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    if added:
        post_processor(library, before="<|begin|>")
    library.save(str(path / "tokenizer.json"))
    model = import_folder(path, {})
    assert model.generation.add_bos is added and model.generation.bos_id == 0
    assert any("add_bos_token" in note for note in model.notes) is (said not in (None, added))
    assert model.tokenizer is not None
    assert load_tokenizer(model.tokenizer).encode("a") == [library.token_to_id("a")]  # never by itself


def test_b20_a_bos_that_only_the_post_processor_names(folder: Build, edit: Edit) -> None:
    path = folder(bos_token_id=None)
    edit(path / "generation_config.json", bos_token_id=None)
    edit(path / "tokenizer_config.json", bos_token=None, add_bos_token=None)
    assert (import_folder(path, {}).generation.bos_id, import_folder(path, {}).generation.add_bos) == (None, False)
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    post_processor(library, before="<|begin|>", after="<|end|>")
    library.save(str(path / "tokenizer.json"))
    model = import_folder(path, {})
    assert (model.generation.bos_id, model.generation.add_bos) == (0, True)
    assert model.notes == ("tokenizer.json adds <|end|> to texts, which prompts do not get",)


def template(path: Path) -> str | None:
    model: ImportedModel = import_folder(path, {})
    return model.generation.chat_template


def test_chat_templates(folder: Build, edit: Edit) -> None:
    path = folder()
    config = path / "tokenizer_config.json"
    for value, wanted in [
        ("one", "one"),
        (None, None),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "only", "template": "o"}], "o"),
    ]:
        edit(config, chat_template=value)
        assert template(path) == wanted
    (path / "chat_template.jinja").write_text("from a file")
    assert template(path) == "from a file"
    (path / "chat_template.jinja").unlink()
    edit(config, chat_template=[{"name": "a", "template": "x"}, {"name": "b", "template": "y"}])
    with pytest.raises(UnsupportedModelError, match="no template called 'default'; there are: a, b"):
        template(path)
    edit(config, chat_template=[{"name": "a"}])
    with pytest.raises(MalformedModelError, match="'chat_template' must be text or a list"):
        template(path)


def test_named_tokens(folder: Build, edit: Edit) -> None:
    path = folder()
    edit(path / "special_tokens_map.json", unk_token="<|turn|>", eos_token="overruled")
    edit(path / "tokenizer_config.json", bos_token={"content": "<|begin|>", "special": True})
    special = import_folder(path, {}).generation.special_tokens
    assert special == {
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "unk_token": "<|turn|>",
    }
    edit(path / "tokenizer_config.json", bos_token=7)
    with pytest.raises(MalformedModelError, match=r"tokenizer_config\.json: field 'bos_token' must be a token's text"):
        import_folder(path, {})


def test_a_folder_without_tokenizer_json_takes_ids_only(folder: Build) -> None:
    path = folder()
    (path / "tokenizer.json").rename(path / "vocab.json")
    model = import_folder(path, {})
    assert model.tokenizer is None
    assert model.notes == ("there is no tokenizer.json, so the model takes token ids only; vocab.json is not read",)


@pytest.mark.parametrize(
    ("decoder", "problem"),
    [
        (None, "has no decoder"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "the decoder WordPiece is not supported"),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}]}, "the decoder Fuse is not supported"),
    ],
)
def test_other_decoders_are_named(folder: Build, edit: Edit, decoder: Any, problem: str) -> None:
    path = folder()
    values = json.loads((path / "tokenizer.json").read_text())
    values["decoder"] = decoder
    (path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedModelError, match=problem):
        import_folder(path, {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": None}, "'model.vocab' or 'added_tokens' is missing"),
        ({"model": {"type": "BPE", "vocab": {"a": "0"}, "merges": []}}, "an id is not a whole number"),
        ({"added_tokens": [{"content": "x"}]}, "an id is not a whole number"),
    ],
)
def test_tokenizer_files_that_are_broken(folder: Build, change: dict[str, Any], problem: str) -> None:
    path = folder()
    values = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(MalformedModelError, match=problem):
        import_folder(path, {})


def test_what_the_library_refuses_is_a_broken_file(tmp_path: Path) -> None:
    values = json.loads(byte_level().to_str())
    values["model"]["type"] = "Nothing"
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    source = TokenizerSource(kind="huggingface", files={"tokenizer.json": tmp_path / "tokenizer.json"})
    with pytest.raises(MalformedModelError, match=r"tokenizer\.json is refused by the tokenizers library"):
        load_tokenizer(source)


def test_a_file_on_which_the_library_panics_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    sentencepiece().save(str(file))
    spelt = json.loads(file.read_text(encoding="utf-8"))
    spelt["model"]["continuing_subword_prefix"] = "longer than any merge"  # found by the fuzzer
    file.write_text(json.dumps(spelt), encoding="utf-8")
    with pytest.raises(MalformedModelError, match=r"tokenizer\.json is refused by the tokenizers library"):
        load_tokenizer(TokenizerSource(kind="huggingface", data={}, files={"tokenizer.json": file}))
