"""From text to the ids of a prompt: the beginning token once, and control tokens only where they are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from cacheir.models.imported import GenerationDefaults
from cacheir.runtime.checked_text import check_text
from cacheir.runtime.tokenizer import Tokenizer


class PromptEncoder:
    """Encodes prompts for one model. What a user types never becomes a control token, whatever it looks like."""

    def __init__(self, tokenizer: Tokenizer, defaults: GenerationDefaults) -> None:
        self._tokenizer = tokenizer
        self._bos = defaults.bos_id if defaults.add_bos else None

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """How the control tokens are spelt, the longest first: where one begins like another, the longer is meant."""
        known = self._tokenizer
        spellings = {known.decode([token], skip_special=False) for token in known.special_ids}
        return tuple(sorted(filter(None, spellings), key=lambda text: (-len(text), text)))

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.control_texts)) or r"(?!)")

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
