"""Checks a plugin module's hooks against the specs before pluggy sees it, so that the message can name the fault."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from types import FunctionType
from typing import Any

from cacheir.errors import HookApiMismatch, PluginError
from cacheir.plugins import hookspecs
from cacheir.plugins.markers import HOOK_API


def hook_specs() -> Mapping[str, FunctionType]:
    """Every hook by name, in the order of ``hookspecs.py``."""
    return {name: item for name, item in vars(hookspecs).items() if hasattr(item, "cacheir_level")}


def arguments(function: Any) -> tuple[str, ...]:
    """The names of the arguments that a hook must be given; ``self`` of a bound method is not one."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty)


def check_version(module: Any) -> None:
    """Raise ``HookApiMismatch`` where the module says it was written for a hook API that this core does not have."""
    wanted = getattr(module, "CACHEIR_HOOK_API", HOOK_API)
    if not (isinstance(wanted, tuple) and len(wanted) == 2 and all(isinstance(part, int) for part in wanted)):
        raise PluginError(f"CACHEIR_HOOK_API must be a pair of numbers such as {HOOK_API}, not {wanted!r}")
    if wanted[0] != HOOK_API[0] or wanted > HOOK_API:
        ours, theirs = (".".join(map(str, version)) for version in (HOOK_API, wanted))
        older = wanted < HOOK_API
        hint = "install a newer version of the plugin" if older else "install a newer cacheir-core, or an older plugin"
        raise HookApiMismatch(f"written for hook API {theirs}; this core has {ours}", hint=hint)


def check_hooks(module: Any) -> None:
    """Raise ``PluginError`` for the first hook that does not exist, asks for what it is not given, or is not marked."""
    specs = hook_specs()
    seen: dict[str, str] = {}
    for name in dir(module):
        function = getattr(module, name, None)
        marks = getattr(function, "cacheir_impl", None)
        if not isinstance(marks, dict):
            _check_unmarked(name, function, specs)
            continue
        hook = marks.get("specname") or name
        if hook not in specs:
            if not marks.get("optionalhook"):
                raise PluginError(f"there is no hook {hook!r}" + _did_you_mean(hook, specs))
            continue
        if seen.setdefault(hook, name) != name:
            raise PluginError(f"{seen[hook]} and {name} both implement {hook}, which a plugin answers once")
        if marks.get("wrapper") or marks.get("hookwrapper"):
            raise PluginError(f"{name} is marked as a wrapper, and CacheIR's hooks cannot be wrapped")
        given = arguments(specs[hook])
        for argument in arguments(function):
            if argument not in given:
                takes = f"is called with {', '.join(given)}" if given else "is called without arguments"
                raise PluginError(f"{name} asks for {argument!r}, and {takes}")


def _check_unmarked(name: str, function: Any, specs: Mapping[str, FunctionType]) -> None:
    if name in specs and inspect.isfunction(function) and not hasattr(function, "cacheir_level"):
        raise PluginError(f"{name} is not marked with @hookimpl, so it would never be called")


def _did_you_mean(name: str, specs: Mapping[str, FunctionType]) -> str:
    close = get_close_matches(name, specs, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
