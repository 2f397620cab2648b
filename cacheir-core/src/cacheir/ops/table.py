"""All ops of core by name."""

from __future__ import annotations

from cacheir.ir.opdef import OpDef
from cacheir.ops.activation import ACTIVATION
from cacheir.ops.attention import ATTENTION
from cacheir.ops.bits import BITS
from cacheir.ops.cache import CACHE
from cacheir.ops.elementwise import ELEMENTWISE
from cacheir.ops.fused import FUSED
from cacheir.ops.gelu import GELU
from cacheir.ops.head import HEAD
from cacheir.ops.linear import LINEAR
from cacheir.ops.norm import NORM
from cacheir.ops.paired import PAIRED
from cacheir.ops.quantized import QUANTIZED
from cacheir.ops.random import RANDOM
from cacheir.ops.reduce import REDUCE
from cacheir.ops.rotary import ROTARY
from cacheir.ops.shape import SHAPE

_SUBJECTS = (
    ELEMENTWISE,
    SHAPE,
    BITS,
    REDUCE,
    LINEAR,
    NORM,
    ACTIVATION,
    GELU,
    ROTARY,
    ATTENTION,
    CACHE,
    QUANTIZED,
    RANDOM,
    HEAD,
    FUSED,
    PAIRED,
)


def core_ops() -> dict[str, OpDef]:
    """Name -> definition of every op that core brings; a new dictionary at each call."""
    return {definition.name: definition for subject in _SUBJECTS for definition in subject}
