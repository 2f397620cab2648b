"""The tokenizer of a folder that has ``tokenizer.model`` (SentencePiece) and no ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheir.errors import UnsupportedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.byte_fallback import WORD_START
from cacheir_importers.character_map import CharacterMap
from cacheir_importers.huggingface.added_tokens import add_tokens, make_special
from cacheir_importers.huggingface.sentencepiece_file import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    parse_model,
)
from cacheir_importers.json_files import read_file
from cacheir_importers.library_tokenizer import LibraryTokenizer
from cacheir_importers.sentencepiece import TextRules, build_bpe, build_unigram

MODEL_FILE = "tokenizer.model"
MODEL_KIND = "sentencepiece"
_MOST_BYTES = 64 << 20
_BUILDERS = {"BPE": build_bpe, "unigram": build_unigram}


def read_model(path: Path) -> tuple[SentencePieceModel, bytes]:
    """The model at ``path`` and its bytes.

    Raises MalformedModelError for a damaged file, UnsupportedModelError that names what it does to texts and we do not.
    """
    content = read_file(path, place=MODEL_FILE, limit=_MOST_BYTES)
    model = parse_model(content, MODEL_FILE)
    if model.model_type not in _BUILDERS:
        raise UnsupportedModelError(
            f"{MODEL_FILE} is a SentencePiece model of the type {model.model_type}; supported: {', '.join(_BUILDERS)}",
            hint="put the model's tokenizer.json beside it",
        )
    not_supported = {
        "treat_whitespace_as_suffix": model.space_suffix,
        "escape_whitespaces = false": not model.escapes_spaces,
        "unused pieces": model.model_type == "unigram" and any(kind == UNUSED for _, _, kind in model.pieces),
    }
    named = [name for name, there in not_supported.items() if there]
    if named:
        raise UnsupportedModelError(
            f"{MODEL_FILE} changes texts in a way that is not supported: {', '.join(named)}",
            hint="put the model's tokenizer.json beside it",
        )
    return model, content


def model_ids(model: SentencePieceModel) -> dict[str, int]:
    """Text -> id of each piece."""
    return {text: token for token, (text, _, _) in enumerate(model.pieces)}


def model_source(path: Path, special: Sequence[str], added: Sequence[Mapping[str, Any]]) -> TokenizerSource:
    """The tokenizer as data: the file, and what tokenizer_config.json adds to it."""
    data = {"special_tokens": list(special), "added_tokens": list(added)}
    return TokenizerSource(kind=MODEL_KIND, data=data, files={MODEL_FILE: path})


def load_model(source: TokenizerSource) -> LibraryTokenizer:
    """The tokenizer of ``source.files["tokenizer.model"]``, with the tokens that ``source.data`` adds."""
    model, _ = read_model(source.files[MODEL_FILE])
    kinds = [kind for _, _, kind in model.pieces]
    texts = [text for text, _, _ in model.pieces]
    unknown = kinds.index(UNKNOWN) if UNKNOWN in kinds else None

    def prepare(library: Any) -> None:
        add_tokens(library, source.data.get("added_tokens", ()), MODEL_FILE)
        make_special(library, source.data.get("special_tokens", ()))

    return _BUILDERS[model.model_type](
        texts,
        [score for _, score, _ in model.pieces],
        pieces=[token for token, kind in enumerate(kinds) if kind in (NORMAL, USER_DEFINED)],
        special=[token for token, kind in enumerate(kinds) if kind in (CONTROL, UNKNOWN)],
        added=[token for token, kind in enumerate(kinds) if kind == USER_DEFINED and WORD_START not in texts[token]],
        unknown=unknown,
        rules=TextRules(
            space_prefix=model.space_prefix,
            one_space=model.one_space,
            characters=CharacterMap(model.character_map, MODEL_FILE) if model.character_map else None,
        ),
        place=MODEL_FILE,
        prepare=prepare,
    )
