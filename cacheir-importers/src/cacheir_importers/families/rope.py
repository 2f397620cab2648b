"""Rotary position embedding in a config.json: the old ``rope_scaling`` spelling and the new ``rope_parameters`` one."""

from __future__ import annotations

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import RopeSpec
from cacheir_importers.fields import Fields

DEFAULT_THETA = 10_000.0


def read_rope(fields: Fields, head_dim: int) -> RopeSpec:
    """The rotation of heads of ``head_dim``; every type but ``default`` is refused by its name.

    ``rope_theta`` may stand at the top, inside ``rope_parameters``, or in both places with one value.
    """
    old, new = fields.section("rope_scaling"), fields.section("rope_parameters")
    nested_theta = None
    for section in (old, new):
        if section is None:
            continue
        _check_type(section)
        _check_full(section)
        theta = _theta(section)
        if theta is not None and nested_theta not in (None, theta):
            raise _disagree(fields, "rope_scaling.rope_theta", nested_theta, "rope_parameters.rope_theta", theta)
        nested_theta = theta if theta is not None else nested_theta
    _check_full(fields)
    top_theta = _theta(fields)
    if nested_theta is not None and top_theta not in (None, nested_theta):
        raise _disagree(fields, "rope_theta", top_theta, "rope_parameters.rope_theta", nested_theta)
    theta = nested_theta if nested_theta is not None else top_theta
    if theta is None:
        theta = fields.assume("rope_theta", DEFAULT_THETA)
    return RopeSpec(theta=theta, dims=head_dim, layout="half")


def _check_type(section: Fields) -> None:
    nested = section.objects()
    if nested:
        raise UnsupportedModelError(
            f"{section.place}: parameters for each layer type ({', '.join(nested)}) are not supported for Llama"
        )
    spelled = [section.text_or(key, None) for key in ("rope_type", "type")]
    names = sorted({name for name in spelled if name is not None})
    if len(names) > 1:
        raise MalformedModelError(f"{section.place}: rope_type and type name two types: {' and '.join(names)}")
    if not names and "factor" in section:
        raise MalformedModelError(f"{section.place}: a factor is there, and no rope_type")
    if names and names[0] != "default":
        raise UnsupportedModelError(f"{section.place}: rope_type {names[0]!r} is not supported; supported: default")


def _check_full(fields: Fields) -> None:
    part = fields.number_or("partial_rotary_factor", None)
    if part not in (None, 1.0):
        raise UnsupportedModelError(f"{fields.place}: partial_rotary_factor {part:g} is not supported for Llama")


def _theta(fields: Fields) -> float | None:
    return fields.number_or("rope_theta", None, least=1.0)


def _disagree(fields: Fields, first: str, value: float | None, second: str, other: float | None) -> MalformedModelError:
    return MalformedModelError(
        f"{fields.place}: {first} is {value} and {second} is {other}; they must agree",
        hint="delete the one that the model was not trained with",
    )
