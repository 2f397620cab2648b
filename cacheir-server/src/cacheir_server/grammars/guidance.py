"""JSON Schema, regular expressions, Lark grammars and choices as masks over tokens, by llguidance."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cacheir.errors import PluginError, RequestError, UsageError
from cacheir.runtime.grammar import TokenMatcher
from cacheir.runtime.tokenizer import Tokenizer
from cacheir_server.grammars.schema_keywords import check_keywords

if TYPE_CHECKING:
    import numpy as np

MAX_GRAMMAR_CHARACTERS = 200_000
MAX_CHOICES = 1000
# Some freedom, as models write JSON, and no room to fill an answer with spaces.
_WHITESPACE = {"whitespace_pattern": r"[ \n]{0,8}"}

Make = Callable[[], TokenMatcher]

# Building one takes a look at every token of the vocabulary.
_TOKENIZERS: weakref.WeakKeyDictionary[Tokenizer, Any] = weakref.WeakKeyDictionary()


def json_schema(text: str, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: Sequence[int]) -> Make:
    """JSON that is valid by the schema ``text``; ``RequestError`` with a JSON pointer for what is not enforced."""
    library = _library()
    _check_length(text)
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise RequestError(f"the JSON schema is not JSON: {error}") from None
    check_keywords(schema)
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    try:
        grammar = library.LLMatcher.grammar_from_json_schema(schema, overrides=_WHITESPACE)
    except ValueError as error:  # a number that is wider than 64 bits, for one
        raise RequestError(f"the JSON schema cannot be enforced: {' '.join(str(error).split())[:100]}") from None
    return _maker(grammar, "JSON schema", tokenizer, vocab_size, eos_ids)


def json_object(text: str, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: Sequence[int]) -> Make:
    """Any JSON object."""
    return json_schema('{"type": "object"}', tokenizer, vocab_size=vocab_size, eos_ids=eos_ids)


def regex(text: str, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: Sequence[int]) -> Make:
    """Text that the whole of a regular expression matches (Rust's syntax, without look-around)."""
    _check_length(text)
    return _maker(_library().LLMatcher.grammar_from_regex(text), "regular expression", tokenizer, vocab_size, eos_ids)


def lark(text: str, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: Sequence[int]) -> Make:
    """Text of a context-free grammar in Lark's notation, from its rule ``start``."""
    _check_length(text)
    return _maker(_library().LLMatcher.grammar_from_lark(text), "grammar", tokenizer, vocab_size, eos_ids)


def choice(text: str, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: Sequence[int]) -> Make:
    """One of several texts, given as a JSON list of strings."""
    _check_length(text)
    options = json.loads(text)
    if not isinstance(options, list) or not options or len(options) > MAX_CHOICES:
        raise RequestError(f"a choice needs from 1 to {MAX_CHOICES} texts")
    if not all(isinstance(option, str) and option for option in options):
        raise RequestError("a choice is among texts that are not empty")
    rules = " | ".join(json.dumps(option) for option in options)
    grammar = _library().LLMatcher.grammar_from_lark(f"start: {rules}")
    return _maker(grammar, "choice", tokenizer, vocab_size, eos_ids)


class _Matcher:
    """llguidance's matcher behind ``TokenMatcher``."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._words = -(-vocab_size // 32)

    def mask(self) -> np.ndarray:
        """u32 [ceil(V / 32)]."""
        import numpy as np

        raw = self._matcher.compute_bitmask()
        self._check()
        mask = np.zeros(self._words, np.uint32)
        found = np.frombuffer(raw, np.uint32)[: self._words]
        mask[: len(found)] = found
        return mask

    def accept(self, token: int) -> None:
        """Moves on; an ending token after the end changes nothing."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"the output can be held to its grammar no longer: {_first_line(self._matcher)}")


def _maker(grammar: str, kind: str, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> Make:
    library = _library()
    known = _known(tokenizer, vocab_size, eos_ids)
    failed, messages = library.LLMatcher.validate_grammar_with_warnings(grammar, known)
    if failed or messages:
        # A warning says that something is not enforced as written.
        raise RequestError(f"the {kind} cannot be enforced: {' '.join(str(messages[0]).split())[:300]}")
    first = library.LLMatcher(known, grammar, log_level=0)
    if first.is_error():
        raise RequestError(f"the {kind} cannot be enforced: {' '.join(first.get_error().split())[:300]}")
    # The first mask is the dear one, and the copies share what was computed for it: here no other answer waits for it.
    allowed = first.compute_bitmask()
    if first.is_error() and "NoExtensionBias" not in first.get_error():
        raise RequestError(f"the {kind} cannot be enforced: {_first_line(first)}")
    if first.is_error() or not any(allowed):
        raise RequestError(f"the {kind} cannot be enforced: there is no text that fits it")
    return lambda: _Matcher(first.deep_copy(), vocab_size)


def _first_line(matcher: Any) -> str:
    """What went wrong, without the parser's state, which is written under it."""
    return str(matcher.get_error()).split("\n", 1)[0][:300]


def _known(tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> Any:
    if not eos_ids:
        raise UsageError("the model has no ending token, so an answer that is complete could not end")
    if (found := _TOKENIZERS.get(tokenizer)) is None:
        library = _library()
        wrapper = library.TokenizerWrapper(_Vocabulary(tokenizer, eos_ids[0]))
        found = library.LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=list(eos_ids))
        _TOKENIZERS[tokenizer] = found
    return found


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.special_ids)
        # A token without a text gets one that no byte sequence of an answer has.
        self.tokens = [tokenizer.token_bytes(token) or b"\xff<%d>" % token for token in range(tokenizer.vocab_size)]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _check_length(text: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise RequestError(f"a grammar may have {MAX_GRAMMAR_CHARACTERS} characters, not {len(text)}")


def _library() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError:
        raise PluginError(
            "structured output needs the package llguidance, which is not installed",
            hint="pip install 'llguidance>=1.7' (the extra `grammar` of cacheir-server)",
        ) from None
    return llguidance
