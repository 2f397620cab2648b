"""From the text of ``--quant`` (a name, a recipe's file) to a plan: which weight becomes which format, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cacheir.errors import UsageError
from cacheir.ir.types import KVType, QuantType, Type
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.pipeline.names import find_name, fold_name
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import QuantSpec
from cacheir.quantisers.recipe_file import KEEP, Recipe, Rule, is_recipe, parse_recipe, read_recipe


@dataclass(frozen=True, kw_only=True)
class QuantPlan:
    """``formats`` maps canonical keys to formats; ``calibrated`` the quantisers that need a text to the keys that they
    decide about.
    """

    formats: Mapping[str, str]
    calibrated: Mapping[str, tuple[str, ...]]


def quant_text(quant: str | Path | None) -> str:
    """What ``CompileOptions.quant`` holds: a folded name, or the text of the recipe that ``quant`` is the file of."""
    if not quant:
        return ""
    text = str(quant)
    if is_recipe(text):
        return parse_recipe(text, "quant").text
    if text.endswith(".json") or "/" in text or isinstance(quant, Path):
        return read_recipe(Path(quant)).text
    return fold_name(text)


def quantiser_names(quant: str) -> list[str]:
    """The quantisers and formats that ``CompileOptions.quant`` names, each once."""
    if not quant:
        return []
    recipe = _recipe(quant)
    return list(dict.fromkeys(name for name in (*(rule.quant for rule in recipe.rules), recipe.rest) if name != KEEP))


def needs_calibration(quant: str, installation: Installation) -> bool:
    """Whether a quantiser that ``quant`` names looks at activations. UsageError for a name that nobody registered."""
    recipe = _recipe(quant)
    found = [_find(name, installation) for name in (*(rule.quant for rule in recipe.rules), recipe.rest)]
    return any(isinstance(spec, QuantSpec) and spec.calibrate is not None for spec in found)


def quant_plan(quant: str, spec: DecoderSpec, types: Mapping[str, Type], installation: Installation) -> QuantPlan:
    """The plan for a decoder whose weights have ``types``.

    Raises UsageError for a name that no plugin registered, a rule that no weight matches, and a weight that the chosen
    format cannot hold, by its key.
    """
    recipe = _recipe(quant)
    plans: dict[str, Mapping[str, str]] = {}
    matched: set[Rule] = set()
    formats: dict[str, str] = {}
    calibrated: dict[str, list[str]] = {}
    for key in types:
        rule = next((rule for rule in recipe.rules if fnmatchcase(key, rule.match)), None)
        name = recipe.rest if rule is None else rule.quant
        if rule is not None:
            matched.add(rule)
        if name not in plans:
            plans[name] = _planned(name, spec, types, installation)
        if key not in plans[name]:
            continue
        format = plans[name][key]
        _check(key, format, types[key], installation)
        formats[key] = format
        found = _find(name, installation)
        if isinstance(found, QuantSpec) and found.calibrate is not None:
            calibrated.setdefault(found.name, []).append(key)
    for rule in recipe.rules:
        if rule not in matched:
            raise UsageError(
                f"the quantisation recipe's pattern {rule.match!r} matches no weight of {spec.label}",
                hint="keys are spelt as embed, layers.0.attn.q; of the rules that fit a key the first decides",
            )
    if not formats and recipe.rules == () and recipe.rest != KEEP:
        raise UsageError(f"{recipe.rest} quantises no weight of {spec.label}")
    return QuantPlan(formats=formats, calibrated={name: tuple(keys) for name, keys in calibrated.items()})


def _recipe(quant: str) -> Recipe:
    return parse_recipe(quant, "quant") if is_recipe(quant) else Recipe((), quant)


def _find(name: str, installation: Installation) -> QuantSpec | str | None:
    """The quantiser called ``name``, the name of a format, or None for ``keep``."""
    if name == KEEP:
        return None
    quantisers = {fold_name(spec.name): spec for spec in installation.quantizers}
    found = quantisers.get(fold_name(name))
    if found is not None:
        return found
    writable = [spec.name for spec in installation.quant_formats if spec.pack is not None]
    if name in writable:
        return name
    return find_name(name, [*(spec.name for spec in quantisers.values()), *writable], "quantiser")


def _planned(name: str, spec: DecoderSpec, types: Mapping[str, Type], installation: Installation) -> Mapping[str, str]:
    found = _find(name, installation)
    if found is None:
        return {}
    if isinstance(found, str):
        return {key: found for key, type_ in types.items() if _is_matrix(type_)}
    options: Any = resolve(found.options)() if found.options is not None else None
    plan: Mapping[str, str] = resolve(found.plan)(spec, types, options)
    return plan


def _is_matrix(type_: Type) -> bool:
    return not isinstance(type_, KVType) and len(type_.shape) >= 2


def _check(key: str, format: str, type_: Type, installation: Installation) -> None:
    record = installation.quant_formats[format]
    if record.pack is None:
        raise UsageError(f"{key} cannot become {format}, which can only be read")
    if isinstance(type_, KVType) or (isinstance(type_, QuantType) and type_.format == format):
        return
    try:
        record.row_bytes(type_.shape[-1].evaluate({}))
    except ValueError as error:
        raise UsageError(
            f"{key} cannot become {format}: {error}",
            hint="the formats int4-g32 to int8-g128, int8 and fp8-e4m3 take rows of any length",
        ) from error
