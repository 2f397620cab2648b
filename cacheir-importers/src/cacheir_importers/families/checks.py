"""Checks of a configuration that hold for every family: head sizes, and fields of other families."""

from __future__ import annotations

from typing import TypedDict

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.fields import Fields


class HeadSizes(TypedDict):
    """What a ``LayerSpec`` says of its heads."""

    heads: int
    kv_heads: int
    head_dim: int


def read_head_dim(fields: Fields, key: str, hidden_key: str, hidden: int, heads: int) -> int:
    """The size of a head: the field ``key``, else ``hidden / heads``; it must be even, since rotation needs pairs."""
    head_dim = fields.whole_or(key, None)
    if head_dim is None:
        if hidden % heads:
            raise MalformedModelError(
                f"{fields.place}: {hidden_key} {hidden} is not a multiple of the {heads} heads, and {key!r} is absent"
            )
        head_dim = hidden // heads
    if head_dim % 2:
        raise UnsupportedModelError(f"{fields.place}: head size {head_dim} is odd, and rotation needs pairs")
    return head_dim


def read_kv_heads(fields: Fields, key: str, heads: int) -> int:
    """The number of key/value heads, ``heads`` where ``key`` is absent; ``heads`` must be a multiple of it."""
    kv_heads = fields.whole_or(key, heads)
    if heads % kv_heads:
        raise MalformedModelError(f"{fields.place}: {heads} heads cannot be shared by {key} = {kv_heads}")
    return kv_heads


def foreign_field(fields: Fields, key: str) -> UnsupportedModelError:
    """The error for a field that another family has and that changes what a model computes."""
    return UnsupportedModelError(
        f"{fields.place}: {key} = {fields.get(key)!r} changes what the model computes, and this family does not"
        " have it: not supported"
    )


def read_chosen(fields: Fields, key: str, experts: int, default: int) -> int:
    """How many of the ``experts`` each token takes."""
    chosen = fields.whole_or(key, default)
    if chosen > experts:
        raise MalformedModelError(f"{fields.place}: {key} is {chosen}, and there are {experts} experts")
    return chosen
