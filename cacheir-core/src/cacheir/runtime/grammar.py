"""Output that is held to a language: a plugin's grammar as a stage between logits and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from cacheir.errors import CacheIRError, PluginError
from cacheir.plugins.ref import resolve
from cacheir.runtime.host_sampling import LogitsStage
from cacheir.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np

    from cacheir.plugins.installation import Installation


class TokenMatcher(Protocol):
    """One answer's place in a language.

    ``mask`` gives u32 [ceil(V / 32)]: bit ``i % 32`` of word ``i // 32`` is set where id ``i`` may come next; where the
    text is complete the ending ids are among them. ``accept`` moves on by a token that was allowed.
    """

    def mask(self) -> np.ndarray: ...

    def accept(self, token: int) -> None: ...


class GrammarStage:
    """A matcher as a ``LogitsStage``: whatever may not come next has no chance."""

    def __init__(self, matcher: TokenMatcher) -> None:
        self._matcher = matcher

    def process(self, ids: Sequence[int], logits: np.ndarray) -> np.ndarray:
        """``logits`` f32 [V] with -inf where the language does not go on."""
        import numpy as np

        from cacheir.reference.sampling import allowed_tokens

        return np.where(allowed_tokens(self._matcher.mask(), len(logits)), logits, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        """Moves the matcher on."""
        self._matcher.accept(token)


def open_grammar(
    language: str,
    text: str,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    eos_ids: Sequence[int],
    installation: Installation,
) -> Callable[[], LogitsStage]:
    """A maker of stages for ``text`` in ``language`` (``json-schema``, ``regex``, ...), one for each answer.

    Raises UsageError for a language that no plugin brings, RequestError where the plugin cannot hold output to all that
    the text says (it names the part), PluginError where it fails otherwise.
    """
    spec = installation.grammars[language]
    try:
        make: Callable[[], TokenMatcher] = resolve(spec.compile)(
            text, tokenizer, vocab_size=vocab_size, eos_ids=tuple(eos_ids)
        )
    except CacheIRError:
        raise
    except Exception as error:
        raise PluginError(f"grammar {spec.name!r} raised {type(error).__name__}: {error}") from error
    return lambda: GrammarStage(make())
