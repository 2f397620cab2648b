"""Which passes take part: the default ones, those asked for with ``--pass``, without those of ``--skip-pass``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from cacheir.errors import PassOptionError, UsageError
from cacheir.pipeline.names import find_name, fold_name
from cacheir.plugins.ref import Lazy, resolve
from cacheir.plugins.specs import PassSpec

if TYPE_CHECKING:
    from cacheir.plugins.host import Contribution

_REQUEST = re.compile(r"\s*([^{}\s]+)\s*(?:\{(.*)\})?\s*", re.DOTALL)
_WORDS: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class ChosenPass:
    """A pass that takes part. ``options`` is an instance of ``spec.options``, None where it has none."""

    spec: PassSpec
    plugin: str
    options: Any = None
    asked_for: bool = False  # named by --pass


def choose_passes(
    installed: Iterable[Contribution[PassSpec]],
    *,
    requests: Sequence[str] = (),
    skips: Sequence[str] = (),
    fixed: Sequence[str] = (),
) -> tuple[ChosenPass, ...]:
    """The passes of a pipeline, by name.

    ``requests`` are texts such as ``fuse-qkv{min-rows=4}``; ``fixed`` are the names of steps that cannot be left out.
    UsageError for a name that no pass has, PassOptionError for an option a pass does not have.
    """
    by_name = {item.spec.name: item for item in installed}
    asked: dict[str, str] = {}
    for request in requests:
        name, options = split_request(request)
        asked[find_name(name, by_name, "pass")] = options
    skipped = set()
    for name in skips:
        for step in fixed:
            if fold_name(step) == fold_name(name):
                raise UsageError(f"{step!r} is a step of the pipeline and cannot be left out", hint="skip passes only")
        skipped.add(find_name(name, by_name, "pass"))
    for name in sorted(skipped & set(asked)):
        raise UsageError(f"pass {name!r} is both asked for and skipped", hint="drop one of --pass and --skip-pass")
    return tuple(
        ChosenPass(item.spec, item.plugin.name, pass_options(item.spec, asked.get(name, "")), name in asked)
        for name, item in sorted(by_name.items())
        if name not in skipped and (item.spec.default or name in asked)
    )


def split_request(text: str) -> tuple[str, str]:
    """``name{a=1,b=2}`` -> name and ``a=1,b=2``; UsageError for text of another form."""
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read the pass {text!r}", hint="write NAME or NAME{option=value,...}")
    return match[1], match[2] or ""


def pass_options(spec: PassSpec, text: str) -> Any:
    """The options of a pass from ``a=1,b=2``: an instance of its frozen dataclass, defaults where nothing is said."""
    return options_of(f"pass {spec.name!r}", spec.options, text)


def options_of(owner: str, options: Lazy[type] | None, text: str) -> Any:
    """An instance of the frozen dataclass ``options`` from ``a=1,b=2``, None where there is none.

    ``owner`` begins the sentence of a PassOptionError.
    """
    given = [pair for pair in (part.strip() for part in text.split(",")) if pair]
    if options is None:
        if given:
            raise PassOptionError(f"{owner} has no options, but was given {', '.join(given)}")
        return None
    kind = resolve(options)
    known = {fold_name(item.name): item for item in fields(kind)}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        item = known.get(fold_name(key))
        if item is None or not equals:
            what = f"does not have the option {key.strip()!r}" if equals else f"cannot read {pair!r}"
            raise _option_error(owner, kind, what)
        values[item.name] = _typed(owner, kind, item, hints[item.name], value.strip())
    missing = [item.name for item in known.values() if item.name not in values and _is_required(item)]
    if missing:
        raise _option_error(owner, kind, f"needs a value for {', '.join(missing)}")
    return kind(**values)


def describe_options(spec: PassSpec) -> str:
    """The option fields of a pass, ``min-rows: int = 4``, joined by commas; "" where it has none."""
    return "" if spec.options is None else _described(resolve(spec.options))


def _described(kind: type) -> str:
    hints = get_type_hints(kind)
    return ", ".join(
        f"{item.name.replace('_', '-')}: {getattr(hints[item.name], '__name__', hints[item.name])}"
        + ("" if item.default is MISSING else f" = {item.default!r}")
        for item in fields(kind)
    )


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _typed(owner: str, options: type, item: Field[Any], kind: Any, text: str) -> Any:
    if kind is str:
        return text
    if kind is bool and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            what = f"takes {kind.__name__} for {item.name!r}, not {text!r}"
            raise _option_error(owner, options, what) from None
    if kind is bool:
        raise _option_error(owner, options, f"takes true or false for {item.name!r}, not {text!r}")
    raise _option_error(owner, options, f"has the option {item.name!r} of a kind that no command line can give")


def _option_error(owner: str, options: type, what: str) -> PassOptionError:
    return PassOptionError(f"{owner} {what}", hint=f"its options: {_described(options)}")
