"""One choice of a chat as it grows: what the model wrote, told apart into content and tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cacheir.runtime.detokenize import Detokenizer
from cacheir.runtime.engine.job import Event
from cacheir.runtime.tokenizer import Tokenizer
from cacheir_server.choice import Choice
from cacheir_server.service import new_id
from cacheir_server.tools.formats import ToolParser
from cacheir_server.tools.json_calls import CallDelta


@dataclass
class ChatChoice:
    """``parser`` is None where no tools were given; then all text is content."""

    base: Choice
    parser: ToolParser | None
    spelled: SpelledText | None = None
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def finish_reason(self) -> str | None:
        """``tool_calls`` where the answer came to its own end with one."""
        reason = self.base.finish_reason
        return "tool_calls" if reason == "stop" and self.calls else reason

    def take(self, event: Event) -> list[dict[str, Any]]:
        """Adds an event; the deltas of a streamed message that come of it."""
        self.base.take(event)
        if self.parser is None:
            self.content += event.text
            return [{"content": event.text}] if event.text else []
        text = event.text if self.spelled is None else self.spelled.push(event)
        content, deltas = self.parser.push(text)
        if event.outcome is not None:
            more, last = self.parser.finish()
            content, deltas = content + more, [*deltas, *last]
        found: list[dict[str, Any]] = []
        if content:
            self.content += content
            found.append({"content": content})
        return found + [{"tool_calls": [self._call(delta)]} for delta in deltas]

    def message(self) -> dict[str, Any]:
        """The whole message. Spaces around calls are no content."""
        content: str | None = self.content
        if self.calls and not self.content.strip():
            content = None
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.calls:
            found["tool_calls"] = self.calls
        return found

    def _call(self, delta: CallDelta) -> dict[str, Any]:
        if delta.name is not None:
            function = {"name": delta.name, "arguments": delta.arguments}
            self.calls.append({"id": new_id("call"), "type": "function", "function": dict(function)})
            return {"index": delta.index, **self.calls[-1], "function": function}
        self.calls[-1]["function"]["arguments"] += delta.arguments
        return {"index": delta.index, "function": {"arguments": delta.arguments}}


class SpelledText:
    """The text of ids with control tokens spelt out: some formats mark a call by one, which plain text leaves out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._plain = Detokenizer(tokenizer)

    def push(self, event: Event) -> str:
        """The text of one event's ids."""
        text = ""
        for token in event.ids:
            if token in self._tokenizer.special_ids:
                text += self._plain.finish() + self._tokenizer.decode([token], skip_special=False)
                self._plain = Detokenizer(self._tokenizer)
            else:
                text += self._plain.push((token,))
        return text + (self._plain.finish() if event.outcome is not None else "")
