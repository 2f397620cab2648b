"""Tokens that stand beside a vocabulary, put into a tokenizer of the tokenizers library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from cacheir.errors import MalformedModelError
from cacheir_importers.huggingface.tokenizer_files import ADDED_TOKEN_FLAGS


def add_tokens(library: Tokenizer, tokens: Iterable[Mapping[str, Any]], place: str) -> None:
    """Add tokens (id, content, flags) of tokenizer_config.json; MalformedModelError where an id is not the next one."""
    for token in tokens:
        flags = {name: token[name] for name in ADDED_TOKEN_FLAGS}
        library.add_tokens([AddedToken(token["content"], **flags)])
        if library.token_to_id(token["content"]) != token["id"]:
            raise MalformedModelError(
                f"tokenizer_config.json gives the token {token['content']!r} the id {token['id']}, which"
                f" {place} has no place for"
            )


def make_special(library: Tokenizer, texts: Iterable[str]) -> None:
    """Make control tokens of those ``texts`` that are tokens; one that is a control token already keeps its flags."""
    added = {token.content: token for token in library.get_added_tokens_decoder().values()}
    for text in texts:
        known = added.get(text)
        if (known is not None and known.special) or library.token_to_id(text) is None:
            continue
        flags = {name: getattr(known, name) for name in ADDED_TOKEN_FLAGS} if known else {"normalized": False}
        library.add_special_tokens([AddedToken(text, **{**flags, "special": True})])
