"""SentencePiece's BPE and unigram models over scored pieces, through the tokenizers library.

BPE joins the two neighbours whose joined piece has the best score, until none can be joined. With merges in the order
of the scores of what they make, the library does the same. A unigram model takes the pieces whose scores have the best
sum.
Source: SentencePiece's ``bpe_model.cc``, ``unigram_model.cc`` and ``normalizer.cc``, and the tokenizer.json files that
were made from such models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, NormalizedString, Regex, Tokenizer, models, normalizers, pre_tokenizers

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.byte_fallback import WORD_START, byte_token, piece_bytes
from cacheir_importers.character_map import CharacterMap
from cacheir_importers.library_tokenizer import LibraryTokenizer


@dataclass(frozen=True, kw_only=True)
class TextRules:
    """What is done to a text before it is split into pieces, in this order.

    ``characters`` maps characters, ``one_space`` drops spaces at the ends and makes one of several, ``space_prefix``
    puts a space before a text and before what follows a control token.
    """

    space_prefix: bool
    one_space: bool = False
    characters: CharacterMap | None = None

    def normalizer(self) -> Any:
        """The rules as the library takes them; a space becomes the mark of a word's start."""
        steps: list[Any] = []
        if self.characters is not None:
            steps.append(normalizers.Normalizer.custom(_Mapped(self.characters)))
        if self.one_space:
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        if self.space_prefix:
            steps.append(normalizers.Prepend(WORD_START))
        return normalizers.Sequence([*steps, normalizers.Replace(" ", WORD_START)])


@dataclass(frozen=True)
class _Mapped:
    """A character map as a step of the library."""

    characters: CharacterMap

    def normalize(self, text: NormalizedString) -> None:
        """Called by the library, which takes what becomes of ``text``."""
        before = text.normalized
        after = self.characters.apply(before)
        if after != before:
            text.clear()
            text.append(after)


def build_bpe(
    tokens: Sequence[str],
    scores: Sequence[float],
    *,
    pieces: Collection[int],
    special: Sequence[int],
    added: Sequence[int],
    unknown: int | None,
    rules: TextRules,
    place: str,
    prepare: Callable[[Tokenizer], None] = lambda library: None,
) -> LibraryTokenizer:
    """The tokenizer of ``tokens`` by id, whose ``pieces`` may be joined.

    ``special`` are control tokens, ``added`` stand for their own text wherever it occurs. ``prepare`` may add tokens to
    the library's object. Raises MalformedModelError, which begins with ``place``.
    """
    return build_merged(
        unique_ids(tokens, place),
        list(ordered_merges(tokens, scores, pieces, place)),
        special=special,
        added=added,
        unknown=unknown,
        rules=rules,
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
    rules: TextRules,
    place: str,
    split: Any = None,
    prepare: Callable[[Tokenizer], None] = lambda library: None,
) -> LibraryTokenizer:
    """The tokenizer of a vocabulary whose merges are in order; ``split`` is a pre-tokenizer, None for whole texts."""
    texts = {token: text for text, token in vocabulary.items()}
    model = _library_model(
        lambda: models.BPE(
            vocabulary,
            merges,
            unk_token=None if unknown is None else texts[unknown],
            fuse_unk=True,
            byte_fallback=_falls_back(vocabulary),
        ),
        place,
    )
    return _finished(
        model, vocabulary, special=special, added=added, unknown=unknown, rules=rules, split=split, prepare=prepare
    )


def build_unigram(
    tokens: Sequence[str],
    scores: Sequence[float],
    *,
    pieces: Collection[int],
    special: Sequence[int],
    added: Sequence[int],
    unknown: int | None,
    rules: TextRules,
    place: str,
    prepare: Callable[[Tokenizer], None] = lambda library: None,
) -> LibraryTokenizer:
    """As ``build_bpe``, for the pieces of a unigram model. The library would also find tokens that are no pieces
    (``<s>``, ``<0x0A>``) in a text, so texts are cut behind the first character of each; a piece over such a cut is
    not found, which costs no text its meaning.
    """
    vocabulary = unique_ids(tokens, place)
    if unknown is None or not pieces or not all(map(math.isfinite, scores)):
        raise MalformedModelError(
            f"{place}: a unigram model needs an unknown piece, others, and scores that are finite"
        )
    if rules.characters is not None:
        mapped = [tokens[token] for token in added if rules.characters.apply(tokens[token]) != tokens[token]]
        if mapped:
            raise UnsupportedModelError(
                f"{place}: the user-defined piece {mapped[0]!r} is changed by its character map"
            )
    # What an unknown character costs follows from the lowest score, so those of other tokens must not be lower.
    lowest = min(scores[token] for token in pieces)
    scored = [(text, scores[token] if token in pieces else lowest) for token, text in enumerate(tokens)]
    model = _library_model(lambda: models.Unigram(scored, unk_id=unknown, byte_fallback=_falls_back(vocabulary)), place)
    hidden = [text for token, text in enumerate(tokens) if token not in pieces and len(text) > 1]
    cuts = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in hidden)
    steps = [pre_tokenizers.Split(Regex(cuts), "merged_with_previous")] if cuts else []
    if added:
        whole = "|".join(re.escape(tokens[token]) for token in sorted(added, key=lambda token: -len(tokens[token])))
        steps.append(pre_tokenizers.Split(Regex(whole), "isolated"))
    split = pre_tokenizers.Sequence(steps) if steps else None
    return _finished(
        model, vocabulary, special=special, added=(), unknown=unknown, rules=rules, split=split, prepare=prepare
    )


def _falls_back(vocabulary: Collection[str]) -> bool:
    """Whether a character that no piece holds is written as its bytes."""
    return all(byte_token(byte) in vocabulary for byte in range(256))


def _library_model(make: Callable[[], Any], place: str) -> Any:
    try:
        return make()
    except Exception as error:  # the library raises nothing narrower
        raise MalformedModelError(f"{place}: the tokenizers library refuses the vocabulary: {error}") from error


def _finished(
    model: Any,
    vocabulary: dict[str, int],
    *,
    special: Sequence[int],
    added: Sequence[int],
    unknown: int | None,
    rules: TextRules,
    split: Any,
    prepare: Callable[[Tokenizer], None],
) -> LibraryTokenizer:
    texts = {token: text for text, token in vocabulary.items()}
    library = Tokenizer(model)
    library.normalizer = rules.normalizer()
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
        to_bytes=piece_bytes(byte_fallback=_falls_back(vocabulary)),
        from_byte=byte_token,
        unknown=unknown,
        strips_leading_space=rules.space_prefix,
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
