"""Rotary position embedding in a config.json: the old ``rope_scaling`` spelling and the new ``rope_parameters`` one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import RopeSpec
from cacheir_importers.families.rope_scaling import (
    linear_factors,
    llama3_factors,
    longrope_factors,
    longrope_magnitude,
    yarn_factors,
    yarn_magnitude,
)
from cacheir_importers.fields import Fields

DEFAULT_THETA = 10_000.0
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rotation(
    fields: Fields,
    head_dim: int,
    *,
    theta: float = DEFAULT_THETA,
    partial: bool = False,
    aliases: Mapping[str, str] | None = None,
) -> RopeSpec:
    """The rotation of heads of ``head_dim``, the same on all layers.

    ``rope_theta`` may stand at the top, inside the nested object, or in both places with one value; ``theta`` is the
    family's own default. ``partial`` says that the family may turn a part of each head, ``aliases`` other names that it
    has for rope types. Raises UnsupportedModelError that names a rope type which is not known.
    """
    section = fields.merged_section("rope_parameters", "rope_scaling")
    if section is not None and section.objects():
        kinds = ", ".join(section.objects())
        raise UnsupportedModelError(f"{section.place}: parameters for each layer type ({kinds}) are not supported here")
    return _rotation(fields, section, head_dim, _theta(fields, section, theta), partial, aliases or {})


def read_rotations(
    fields: Fields, head_dim: int, thetas: Mapping[str, tuple[str, float]], *, scaled: Sequence[str]
) -> dict[str, RopeSpec]:
    """The rotation of each layer type, for a family whose types turn in ways of their own.

    ``thetas`` maps a layer type to the field that holds its base in the old spelling, and the family's default. In the
    old spelling ``rope_scaling`` holds for the types ``scaled`` alone.
    """
    new, old = fields.section("rope_parameters"), fields.section("rope_scaling")
    found = {}
    for kind, (field, theta) in thetas.items():
        section = new.section(kind) if new is not None else None
        if new is not None and section is None and not new.objects():
            section = new
        if section is None and kind in scaled:
            section = old
        found[kind] = _rotation(fields, section, head_dim, _theta(fields, section, theta, field), False, {})
    return found


def _theta(fields: Fields, section: Fields | None, default: float, field: str = "rope_theta") -> float:
    top = fields.number_or(field, None, least=1.0)
    nested = section.number_or("rope_theta", None, least=1.0) if section is not None else None
    if top is not None and nested not in (None, top):
        assert section is not None
        raise MalformedModelError(
            f"{fields.place}: {field} is {top} and {section.place.rpartition(': ')[2]}.rope_theta is {nested}; they"
            " must agree",
            hint="delete the one that the model was not trained with",
        )
    chosen = nested if nested is not None else top
    return chosen if chosen is not None else fields.assume(field, default)


def _rotation(
    fields: Fields, section: Fields | None, head_dim: int, theta: float, partial: bool, aliases: Mapping[str, str]
) -> RopeSpec:
    dims = _dims(fields, section, head_dim, partial)
    kind = _type(section, aliases)
    if section is None or kind == "default":
        return RopeSpec(theta=theta, dims=dims)
    if kind == "dynamic":
        return _dynamic(fields, section, theta, dims)
    if kind == "linear":
        return RopeSpec(theta=theta, dims=dims, factors=linear_factors(dims, _factor(section)))
    original = _original(fields, section)
    if kind == "llama3":
        low, high = section.number("low_freq_factor", least=1e-6), section.number("high_freq_factor", least=1e-6)
        if low >= high:
            raise MalformedModelError(f"{section.place}: low_freq_factor {low} must be below high_freq_factor {high}")
        factors = llama3_factors(theta, dims, factor=_factor(section), low=low, high=high, original=original)
        return RopeSpec(theta=theta, dims=dims, factors=factors)
    given = section.number_or("factor", None, least=1e-3)
    factor = given if given is not None else fields.whole_or("max_position_embeddings", 2048) / original
    magnitude = section.number_or("attention_factor", None, least=1e-3)
    if kind == "yarn":
        return _yarn(section, theta, dims, factor, original, magnitude)
    return _longrope(section, theta, dims, factor, original, magnitude)


def _yarn(section: Fields, theta: float, dims: int, factor: float, original: int, magnitude: float | None) -> RopeSpec:
    scales = section.number_or("mscale", None), section.number_or("mscale_all_dim", None)
    fast, slow = (section.number_or(key, None) for key in ("beta_fast", "beta_slow"))
    factors = yarn_factors(
        theta,
        dims,
        factor=factor,
        original=original,
        fast=fast or 32.0,
        slow=slow or 1.0,
        truncate=section.flag_or("truncate", True),
    )
    magnitude = magnitude if magnitude is not None else yarn_magnitude(factor, *scales)
    return RopeSpec(theta=theta, dims=dims, factors=factors, magnitude=magnitude)


def _longrope(
    section: Fields, theta: float, dims: int, factor: float, original: int, magnitude: float | None
) -> RopeSpec:
    """Two tables: the short one is for sequences of up to ``original`` tokens, the long one for longer ones."""
    tables = []
    for key in ("short_factor", "long_factor"):
        table = section.numbers_or(key, None, least=1e-6)
        if table is None or len(table) != dims // 2:
            held = "is missing" if table is None else f"has {len(table)} numbers"
            raise MalformedModelError(f"{section.place}: {key} {held}; {dims // 2} are needed, one for each pair")
        tables.append(longrope_factors(theta, dims, table))
    return RopeSpec(
        theta=theta,
        dims=dims,
        factors=tables[0],
        magnitude=magnitude if magnitude is not None else longrope_magnitude(factor, original),
        original=original,
        long_factors=tables[1],
    )


def _dynamic(fields: Fields, section: Fields, theta: float, dims: int) -> RopeSpec:
    """The base grows with a sequence of more than ``max_position_embeddings`` tokens."""
    growth, original = section.number("factor", least=1.0), fields.whole_or("max_position_embeddings", 2048)
    if dims == 2:
        raise UnsupportedModelError(f"{section.place}: rope_type dynamic has no base for heads that turn 2 dimensions")
    fields.note(
        f"rope_type dynamic: beyond {original} tokens keys keep the rotation that they were computed with, as in"
        " transformers, so what is answered depends on how much of a text was given at once"
    )
    return RopeSpec(theta=theta, dims=dims, original=original, growth=growth)


def _factor(section: Fields) -> float:
    return section.number("factor", least=1e-3)


def _original(fields: Fields, section: Fields) -> int:
    key = "original_max_position_embeddings"
    nested, top = section.whole_or(key, None, least=2), fields.whole_or(key, None, least=2)
    if nested is not None and top not in (None, nested):
        raise MalformedModelError(f"{section.place}: {key} is {nested}, and at the top it is {top}; they must agree")
    found = nested if nested is not None else top
    return found if found is not None else fields.whole_or("max_position_embeddings", 2048, least=2)


def _type(section: Fields | None, aliases: Mapping[str, str]) -> str:
    if section is None:
        return "default"
    spelled = [section.text_or(key, None) for key in ("rope_type", "type")]
    names = sorted({name for name in spelled if name is not None})
    if len(names) > 1:
        raise MalformedModelError(f"{section.place}: rope_type and type name two types: {' and '.join(names)}")
    if not names and "factor" in section:
        raise MalformedModelError(f"{section.place}: a factor is there, and no rope_type")
    name = names[0] if names else "default"
    name = aliases.get(name, name)
    if name not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{section.place}: rope_type {name!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
        )
    return name


def _dims(fields: Fields, section: Fields | None, head_dim: int, partial: bool) -> int:
    key, parts = "partial_rotary_factor", []
    for held in (fields, section):
        part = held.number_or(key, None, least=0.0, most=1.0) if held is not None else None
        parts += [] if part is None else [part]
    if len(set(parts)) > 1:
        raise MalformedModelError(f"{fields.place}: {key} is {parts[0]} and {parts[1]}; they must agree")
    if not parts or parts[0] == 1:
        return head_dim
    if not partial:
        raise UnsupportedModelError(f"{fields.place}: {key} {parts[0]:g} is not supported for this family")
    dims = int(head_dim * parts[0])
    if dims < 2 or dims % 2:
        raise UnsupportedModelError(f"{fields.place}: {key} {parts[0]:g} turns {dims} dimensions, not an even number")
    return dims
