"""From text to the ids of a prompt: the beginning token once, and control tokens only where they are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cacheir.errors import RequestError
from cacheir.models.imported import GenerationDefaults
from cacheir.runtime.tokenizer import Tokenizer


class PromptEncoder:
    """Encodes prompts for one model. What a user types never becomes a control token, whatever it looks like."""

    def __init__(self, tokenizer: Tokenizer, defaults: GenerationDefaults) -> None:
        self._tokenizer = tokenizer
        self._bos = defaults.bos_id if defaults.add_bos else None
        spellings = (tokenizer.decode([token], skip_special=False) for token in sorted(tokenizer.special_ids))
        # The longest first: where one control token begins like another, the longer one is meant.
        self.control_texts = tuple(sorted({text for text in spellings if text}, key=lambda text: (-len(text), text)))
        self._control = re.compile("|".join(map(re.escape, self.control_texts)) or r"(?!)")

    def text_ids(self, text: str, *, at_start: bool = True) -> list[int]:
        """Ids of a plain text; ``at_start`` puts the beginning token in front where the model wants one."""
        check_text("the prompt", text)
        begin = [self._bos] if at_start and self._bos is not None else []
        return begin + self._tokenizer.encode(text)

    def rendered_ids(self, rendered: str, guard: str = "") -> list[int]:
        """Ids of a rendered chat: the template's control tokens are control tokens, those that users typed are text.

        ``guard`` is the character that ``chat_messages.guarded`` put into the users' look-alikes, "" for none. The
        stretch between two control tokens that holds one is encoded as plain text.
        """
        ids: list[int] = []
        if not guard or guard not in rendered:
            ids = self._tokenizer.encode(rendered, special=True)
        else:
            start = 0
            for match in (*self._control.finditer(rendered), None):
                stop = match.start() if match else len(rendered)
                if stretch := rendered[start:stop].replace(guard, ""):
                    ids += self._tokenizer.encode(stretch)
                if match:
                    ids += self._tokenizer.encode(match.group(), special=True)
                    start = match.end()
        if self._bos is not None and ids[:1] != [self._bos]:
            return [self._bos, *ids]
        return ids

    def at_start(self, ids: Sequence[int]) -> bool:
        """Whether a text begins after ``ids``: there is none before it, or a control token stands between."""
        return not ids or ids[-1] in self._tokenizer.special_ids


def check_text(what: str, text: object) -> None:
    """``RequestError`` where ``text`` is no string, or holds half of a surrogate pair, which no encoding has."""
    if not isinstance(text, str):
        raise RequestError(f"{what} must be a string, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as fault:
        where = f"at character {fault.start}"
        raise RequestError(f"{what} has half of a surrogate pair {where}, which is no text") from fault
