"""Builds the tokenizer of a GGUF file, byte-level BPE, from its arrays, through the tokenizers library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from cacheir.errors import MalformedModelError
from cacheir.models.imported import TokenizerSource
from cacheir_importers.byte_level import BYTE_CHARACTERS, to_bytes
from cacheir_importers.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from cacheir_importers.library_tokenizer import LibraryTokenizer


def load_tokenizer(source: TokenizerSource) -> LibraryTokenizer:
    """The tokenizer that ``read_tokenizer`` described. MalformedModelError where its arrays make none."""
    data = source.data
    tokens: list[str] = data["tokens"]
    pre = PRE_TOKENIZERS[data["pre"]]
    merges = [tuple(merge.split(" ")) for merge in data["merges"]]
    if set(map(len, merges)) - {2}:
        uneven = next(number for number, merge in enumerate(merges) if len(merge) != 2)
        raise MalformedModelError(f"tokenizer.ggml.merges[{uneven}] {data['merges'][uneven]!r} is not two tokens")
    try:
        library = Tokenizer(models.BPE(_vocabulary(tokens), merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # the library raises nothing narrower
        raise MalformedModelError(f"the tokenizers library refuses the tokenizer's arrays: {error}") from error
    _install(pre, library)
    special, added = data["special"], data["added"]
    library.add_special_tokens([AddedToken(tokens[token], special=True, normalized=False) for token in special])
    library.add_tokens([AddedToken(tokens[token], special=False, normalized=False) for token in added])
    return LibraryTokenizer(
        library,
        vocab_size=len(tokens),
        literal={token: tokens[token] for token in (*special, *added)},
        control=special,
        to_bytes=to_bytes,
        from_byte=BYTE_CHARACTERS.__getitem__,
    )


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocabulary = dict(zip(tokens, range(len(tokens))))
    if len(vocabulary) == len(tokens):
        return vocabulary
    seen: dict[str, int] = {}
    for token, text in enumerate(tokens):
        if text in seen:
            raise MalformedModelError(f"tokenizer.ggml.tokens has {text!r} twice, as {seen[text]} and {token}")
        seen[text] = token
    return vocabulary


def _install(pre: PreTokenizer, tokenizer: Tokenizer) -> None:
    """Set the normalizer, the splits and the byte-level steps of ``tokenizer``."""
    forms: dict[str, Callable[[], Any]] = {"NFC": normalizers.NFC}
    if pre.normalize:
        tokenizer.normalizer = forms[pre.normalize]()
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
