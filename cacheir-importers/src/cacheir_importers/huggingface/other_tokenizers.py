"""Which tokenizer a folder without tokenizer.json has: tekken.json, else tokenizer.model, else none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheir.models.imported import TokenizerSource
from cacheir_importers.huggingface.tekken import TEKKEN_FILE, TEKKEN_KIND, read_tekken
from cacheir_importers.huggingface.tokenizer_model import MODEL_FILE, model_ids, model_source, read_model

AddedTokens = Callable[[Collection[str]], list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class OtherTokenizer:
    """``named`` are the texts of BOS and EOS where the file itself says which they are; ``part`` is its name and bytes.

    ``ids`` has the id of every text, added tokens included; ``size`` is the highest id plus one.
    """

    source: TokenizerSource
    named: Mapping[str, str]
    ids: Mapping[str, int]
    size: int
    part: tuple[str, bytes]


def find_other(folder: Path, special: Sequence[str], added_tokens: AddedTokens) -> OtherTokenizer | None:
    """The tokenizer of ``folder``, None where it has neither file.

    ``special`` are texts that the files beside it make control tokens, ``added_tokens`` gives the tokens of
    tokenizer_config.json that are not among the texts it is given.
    """
    if (folder / TEKKEN_FILE).exists():
        tekken, content = read_tekken(folder / TEKKEN_FILE)
        return OtherTokenizer(
            source=TokenizerSource(kind=TEKKEN_KIND, files={TEKKEN_FILE: folder / TEKKEN_FILE}),
            named=_present({"bos_token": "<s>", "eos_token": "</s>"}, tekken.ids),
            ids=tekken.ids,
            size=tekken.size,
            part=(TEKKEN_FILE, content),
        )
    if (folder / MODEL_FILE).exists():
        model, content = read_model(folder / MODEL_FILE)
        pieces = model_ids(model)
        added = added_tokens(pieces)
        texts = [text for text, _, _ in model.pieces]
        named = {"bos_token": model.begin, "eos_token": model.end}
        return OtherTokenizer(
            source=model_source(folder / MODEL_FILE, special, added),
            named={name: texts[token] for name, token in named.items() if 0 <= token < len(texts)},
            ids=pieces | {token["content"]: token["id"] for token in added},
            size=max([len(texts) - 1, *(token["id"] for token in added)]) + 1,
            part=(MODEL_FILE, content),
        )
    return None


def _present(named: Mapping[str, str], ids: Mapping[str, int]) -> dict[str, str]:
    return {name: text for name, text in named.items() if text in ids}
