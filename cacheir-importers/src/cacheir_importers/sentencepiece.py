"""SentencePiece's BPE over scored pieces, through the tokenizers library.

SentencePiece joins the two neighbours whose joined piece has the best score, until none can be joined. With merges in
the order of the scores of what they make, the library does the same.
Source: SentencePiece's ``bpe_model.cc`` and the tokenizer.json files that were made from such models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers

from cacheir.errors import MalformedModelError
from cacheir_importers.byte_fallback import WORD_START, byte_token, piece_bytes
from cacheir_importers.library_tokenizer import LibraryTokenizer


def build_bpe(
    tokens: Sequence[str],
    scores: Sequence[float],
    *,
    pieces: Collection[int],
    special: Sequence[int],
    added: Sequence[int],
    unknown: int | None,
    space_prefix: bool,
    place: str,
    prepare: Callable[[Tokenizer], None] = lambda library: None,
) -> LibraryTokenizer:
    """The tokenizer of ``tokens`` by id, whose ``pieces`` may be joined.

    ``special`` are control tokens, ``added`` stand for their own text wherever it occurs. ``space_prefix`` puts a space
    before a text and before what follows a control token. ``prepare`` may add tokens to the library's object. Raises
    MalformedModelError, which begins with ``place``.
    """
    merges = list(ordered_merges(tokens, scores, pieces, place))
    vocabulary = unique_ids(tokens, place)
    return build_merged(
        vocabulary,
        merges,
        special=special,
        added=added,
        unknown=unknown,
        space_prefix=space_prefix,
        place=place,
        prepare=prepare,
    )


def build_merged(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    special: Sequence[int],
    added: Sequence[int],
    unknown: int | None,
    space_prefix: bool,
    place: str,
    split: Any = None,
    prepare: Callable[[Tokenizer], None] = lambda library: None,
) -> LibraryTokenizer:
    """The tokenizer of a vocabulary whose merges are in order; ``split`` is a pre-tokenizer, None for whole texts."""
    texts = {token: text for text, token in vocabulary.items()}
    falls_back = all(byte_token(byte) in vocabulary for byte in range(256))
    try:
        library = Tokenizer(
            models.BPE(
                vocabulary,
                merges,
                unk_token=None if unknown is None else texts[unknown],
                fuse_unk=True,
                byte_fallback=falls_back,
            )
        )
    except Exception as error:  # the library raises nothing narrower
        raise MalformedModelError(f"{place}: the tokenizers library refuses the vocabulary: {error}") from error
    steps: list[Any] = [normalizers.Prepend(WORD_START)] if space_prefix else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", WORD_START)])
    if split is not None:
        library.pre_tokenizer = split
    library.add_special_tokens([AddedToken(texts[token], special=True, normalized=False) for token in special])
    library.add_tokens([AddedToken(texts[token], special=False, normalized=False) for token in added])
    prepare(library)
    beside = library.get_added_tokens_decoder()
    return LibraryTokenizer(
        library,
        vocab_size=max([*texts, *beside]) + 1,
        literal={token: added_token.content for token, added_token in beside.items()},
        control=[token for token, added_token in beside.items() if added_token.special],
        to_bytes=piece_bytes(byte_fallback=falls_back),
        from_byte=byte_token,
        unknown=unknown,
        strips_leading_space=space_prefix,
    )


def ordered_merges(
    tokens: Sequence[str], scores: Sequence[float], pieces: Collection[int], place: str
) -> Iterator[tuple[str, str]]:
    """Every way to make one piece of two, by falling score of what is made; of equal scores the lower id first."""
    if not all(map(math.isfinite, scores)):
        raise MalformedModelError(f"{place}: a score of the tokenizer is not a finite number")
    known = {tokens[token]: token for token in pieces}
    # A large vocabulary has a million ways, so they are made in order and not sorted afterwards.
    for token in sorted(pieces, key=lambda token: (-scores[token], token)):
        text = tokens[token]
        cuts = [cut for cut in range(1, len(text)) if text[:cut] in known and text[cut:] in known]
        ways = [(text[:cut], text[cut:]) for cut in cuts]
        if len(ways) > 1:
            ways.sort(key=lambda way: (known[way[0]], known[way[1]]))
        yield from ways


def unique_ids(tokens: Sequence[str], place: str) -> dict[str, int]:
    """Text -> id; MalformedModelError names a text that stands twice."""
    vocabulary: dict[str, int] = {}
    for token, text in enumerate(tokens):
        if text in vocabulary:
            raise MalformedModelError(f"{place} has {text!r} twice, as {vocabulary[text]} and {token}")
        vocabulary[text] = token
    return vocabulary
