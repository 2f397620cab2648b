"""A model's chat template: messages in, the text of a prompt out. It comes from a model file, so it is not trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from cacheir.errors import MalformedModelError, RequestError

MAX_TEMPLATE_CHARACTERS = 1_000_000

# What a template can run into by itself; anything else is a fault of ours and is not hidden.
_FAULTS = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


class ChatTemplate:
    """A compiled template. ``special_tokens`` are the texts that templates name: ``bos_token``, ``eos_token``, ...

    Jinja is imported here and not before. ``MalformedModelError`` where the template cannot be compiled.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._code = _compiled(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. ``RequestError`` where the template refuses the messages, fails, or costs too much."""
        from jinja2 import Template
        from jinja2.exceptions import TemplateError, UndefinedError

        from cacheir.runtime.template_budget import MAX_STEPS, Budget, size_of
        from cacheir.runtime.template_sandbox import TemplateSandbox

        values: dict[str, Any] = {
            **self._special_tokens,
            "tools": tools,
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        budget = Budget(size_of(values, MAX_STEPS * 1000))
        sandbox = TemplateSandbox(budget)
        try:
            template = Template.from_code(sandbox, self._code, sandbox.make_globals(None))
            context = template.new_context(values)
            return sandbox.joined(template.root_render_func(context))
        except UndefinedError as fault:
            raise RequestError(f"the chat template uses something that is not there: {fault.message}") from fault
        except TemplateError as fault:
            raise RequestError(f"the chat template refuses: {fault.message}") from fault
        except _FAULTS as fault:
            raise RequestError(f"the chat template failed with {type(fault).__name__}: {fault}") from fault


def _compiled(source: str) -> CodeType:
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    from cacheir.runtime.template_budget import Budget
    from cacheir.runtime.template_sandbox import TemplateSandbox

    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise MalformedModelError(
            f"the model's chat template has {len(source)} characters, more than {MAX_TEMPLATE_CHARACTERS}"
        )
    try:
        return TemplateSandbox(Budget(0)).compile(source)
    except TemplateSyntaxError as fault:
        raise MalformedModelError(f"the model's chat template, line {fault.lineno}: {fault.message}") from fault
    except (TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as fault:
        raise MalformedModelError(f"the model's chat template cannot be compiled: {fault}") from fault
