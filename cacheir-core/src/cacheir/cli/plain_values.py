"""Values of a command line that need no conversion, taken without typer's adapters.

Typer makes a pydantic adapter for each parameter that is given or has a default, and imports pydantic for it: a tenth
of a second before the command begins. A text for a text, a default of the right type and digits for a number come out
of an adapter as they are, so they are not sent through one. Everything else is, so that every refusal is typer's, but
for one: an option that names something refuses to be empty.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from cacheir.errors import UsageError

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")

# Options that name something, for which their default "" stands for none. One given as "" comes from a shell variable
# that was not set, and would quietly mean that it was left out.
_NAMING = frozenset(
    {
        *("memory", "quant", "kv_dtype", "cuda_dtype", "jit_after_warmup", "sampler", "suite", "url"),
        *("spill_folder", "tool_parser", "served_model_name"),
        *("until", "from_pass", "pass_name", "node", "history", "graph", "mode"),
    }
)
# What stands for "send it through typer".
_OTHER = object()


def take_plain_values(command: Any) -> None:
    """Let the parameters of ``command``, and of the commands in it, take plain values as they are."""
    for member in getattr(command, "commands", {}).values():
        take_plain_values(member)
    _leave_help_alone(command)
    if command.callback is None:
        return
    function = inspect.unwrap(command.callback)
    signature = inspect.signature(function)
    try:
        hints = inspect.get_annotations(function, eval_str=True)
    except NameError:  # a plugin's names that exist for a type checker alone
        return
    for parameter in command.params:
        declared = signature.parameters.get(parameter.name)
        if declared is not None and _is_plain(declared.default):
            _take_plain_values_of(parameter, hints.get(parameter.name), declared.default)


def _leave_help_alone(command: Any) -> None:
    """Let ``--help``, which click adds while it parses, pass where it was not given: its callback then does nothing."""
    made: Callable[[Any], Any] = command.get_help_option

    def get_help_option(context: Any) -> Any:
        option = made(context)
        if option is not None and "process_value" not in vars(option):
            through_typer = option.process_value
            option.process_value = lambda context, value: through_typer(context, value) if value else value
        return option

    command.get_help_option = get_help_option


def _is_plain(info: object) -> bool:
    """Whether nothing but its type and bounds decides what a value becomes."""
    if not isinstance(info, (OptionInfo, ArgumentInfo)):
        return False
    odd = ("callback", "parser", "click_type", "clamp", "prompt", "path_type", "formats", "count")
    return not any(getattr(info, name, None) for name in odd)


def _take_plain_values_of(parameter: Any, hint: Any, info: Any) -> None:
    """Replace click's ``process_value`` of one parameter by one that asks it only where the value is not plain."""
    through_typer: Callable[[Any, Any], Any] = parameter.process_value

    def process_value(context: Any, value: Any) -> Any:
        if value == "" and parameter.name in _NAMING and not _is_default(context, parameter.name):
            raise UsageError(f"{parameter.opts[0]} is empty", hint=f"give it a value, or leave {parameter.opts[0]} out")
        plain = _plain(hint, value, info, optional=not parameter.required)
        return through_typer(context, value) if plain is _OTHER else plain

    parameter.process_value = process_value


def _is_default(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name in ("DEFAULT", "DEFAULT_MAP")


def _plain(hint: Any, value: Any, info: Any, *, optional: bool) -> Any:
    """What ``value`` becomes as a ``hint``, ``_OTHER`` where typer has to say."""
    if value is None and hint in (str, int, float):
        return None if optional else _OTHER
    if hint is str:
        return value if type(value) is str else _OTHER
    if hint == list[str] and type(value) in (list, tuple):
        taken = value and all(type(item) is str for item in value)
        return list(value) if taken or (optional and not value) else _OTHER
    if hint not in (int, float) or type(value) not in (int, float, str):
        return _OTHER
    if type(value) is str and not (_WHOLE if hint is int else _DECIMAL).fullmatch(value):
        return _OTHER
    if type(value) is float and hint is int:
        return _OTHER
    number = hint(value)
    below = info.min is not None and number < info.min
    above = info.max is not None and number > info.max
    return _OTHER if below or above else number
