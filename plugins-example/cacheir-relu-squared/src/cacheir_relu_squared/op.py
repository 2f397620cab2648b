"""The op relu_squared: its types, what it means, and examples to try kernels on.

So et al., "Primer: Searching for Efficient Transformers for Language Modeling" (arXiv 2109.08668).
"""

from cacheir.errors import TypeRuleError
from cacheir.ir import GraphBuilder, TensorType
from cacheir.plugins.installation import default


def infer(types, attrs):
    """The result has the operand's type."""
    (x,) = types
    if not isinstance(x, TensorType) or x.dtype not in ("f32", "f16", "bf16"):
        raise TypeRuleError(f"relu_squared takes floating point numbers, not {x}")
    return [x]


def decompose(op):
    """Core's ops, computed in float32 and rounded once."""
    (operand,) = op.operands
    names = sorted({name for size in operand.type.shape for name in size.names})
    dims = [(name, 0, 2**31 - 1) for name in names]
    builder = GraphBuilder("relu_squared.meaning", default().ops.by_name(), dims=dims)
    wide = builder.op("cast", builder.input("x", operand.type), dtype="f32")
    zero = builder.op("constant", dtype="f32", shape=(), values=(0.0,))
    positive = builder.op("maximum", wide, zero)
    return builder.finish(builder.op("cast", builder.op("multiply", positive, positive), dtype=op.result.type.dtype))


def examples():
    """Operand types and attributes: odd sizes, one row, none."""
    return [((TensorType.of("f32", *shape),), {}) for shape in ((3, 7), (1, 16), (0, 4), (5,))]
