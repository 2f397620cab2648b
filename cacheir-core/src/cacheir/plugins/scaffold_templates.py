"""The texts of ``cacheir plugins new``: one project, and one module for each kind of plugin."""

from __future__ import annotations

PROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "cacheir-$name"
version = "0.1.0"
description = "A CacheIR plugin: the $kind $name."
readme = "README.md"
requires-python = ">=3.10"
dependencies = ["cacheir-core>=$low,<$high"]

[project.optional-dependencies]
test = ["cacheir-core[testing]>=$low,<$high"]

[project.entry-points.cacheir]
$name = "$module"

[tool.hatch.build.targets.wheel]
only-include = ["src/$module.py"]
sources = ["src"]

[tool.pytest.ini_options]
pythonpath = ["src"]
"""

README = """\
# cacheir-$name

A CacheIR plugin that adds the $kind `$name`.

    pip install --no-deps -e .
    cacheir plugins doctor $name
    pytest tests
"""

TEST = '''\
"""The plugin does what every plugin must."""

from cacheir.testing import $imports


class TestPlugin(PluginTests):
    plugin = "$module"
'''

_PASS = '''\
"""A CacheIR plugin: the pass $name, which removes casts to the type that a value has already."""

from cacheir.plugins import PassSpec, Stage, hookimpl


def $word(graph, context):
    """The graph without casts that change nothing; the same object where there are none."""

    def rule(op, rewriter):
        if op.name == "cast" and op.result.type == op.operands[0].type:
            context.note(f"dropped {op.result}")
            return [op.operands[0]]
        return None  # keep every other op

    return context.rewrite(graph, rule)


@hookimpl
def cacheir_register_passes():
    yield PassSpec(
        name="$name",
        run="$module:$word",
        stage=Stage.LOGICAL,
        summary="Remove casts that change nothing.",
        before=("dead-code",),
    )
'''

_OP = '''\
"""A CacheIR plugin: the op $word, the square of each element."""

from cacheir.plugins import hookimpl


def infer(types, attrs):
    """The result has the operand's type."""
    return types


def decompose(op):
    """What the op means, in core's ops: computed in float32 and rounded once."""
    from cacheir.ir import GraphBuilder
    from cacheir.plugins.installation import default

    (operand,) = op.operands
    names = sorted({name for size in operand.type.shape for name in size.names})
    builder = GraphBuilder("$word.meaning", default().ops.by_name(), dims=[(name, 0, 2**31 - 1) for name in names])
    wide = builder.op("cast", builder.input("x", operand.type), dtype="f32")
    squared = builder.op("multiply", wide, wide)
    return builder.finish(builder.op("cast", squared, dtype=op.result.type.dtype))


@hookimpl
def cacheir_register_ops():
    from cacheir.ir import OpDef, Operand

    yield OpDef(
        name="$word",
        dialect="nn",
        operands=(Operand("x", "any float"),),
        results=("out",),
        infer="$module:infer",
        decompose="$module:decompose",
        doc="the square of each element",
    )
'''

_EXPORTER = '''\
"""A CacheIR plugin: the exporter $name, which writes one line for each op."""

from cacheir.plugins import ExporterSpec, hookimpl


def export(graph, out):
    """Write the ops of ``graph``, each with its results' types."""
    for op in graph.ops:
        types = ", ".join(str(value.type) for value in op.results)
        print(f"{op.name}: {types}", file=out)


@hookimpl
def cacheir_register_exporters():
    yield ExporterSpec(name="$name", summary="One line for each op.", run="$module:export", suffix=".txt")
'''

_COMMAND = '''\
"""A CacheIR plugin: the command $name, which says how many passes are installed."""

from cacheir.plugins import CommandSpec, hookimpl


def $word():
    """Say how many passes are installed."""
    from cacheir.plugins.installation import default

    print(f"{len(default().passes)} passes")


@hookimpl
def cacheir_register_commands():
    yield CommandSpec(name="$name", help="Say how many passes are installed.", app="$module:$word")
'''

_QUANT_FORMAT = '''\
"""A CacheIR plugin: the quant format $name, 32 signed bytes to a block with one f32 scale."""

from cacheir.plugins import QuantFormatSpec, hookimpl

BLOCK = 32


def unpack(blocks):
    """u8 [n, 36] -> f32 [n, 32]: the scale times each signed byte."""
    import numpy as np

    scales = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return scales * np.ascontiguousarray(blocks[:, 4:]).view(np.int8).astype(np.float32)


def pack(values):
    """f32 [n, 32] -> u8 [n, 36], each block scaled by its largest magnitude."""
    import numpy as np

    scales = (np.abs(values).max(axis=1, keepdims=True) / 127).astype("<f4")
    steps = np.divide(values, scales, out=np.zeros_like(values), where=scales > 0)
    whole = np.clip(np.rint(steps), -127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), whole.view(np.uint8)], axis=1)


@hookimpl
def cacheir_register_quant_formats():
    yield QuantFormatSpec(
        name="$name",
        summary="f32 scale; 8 bits, signed",
        block=BLOCK,
        block_bytes=4 + BLOCK,
        unpack="$module:unpack",
        pack="$module:pack",
    )
'''

MODULES = {
    "pass": _PASS,
    "op": _OP,
    "exporter": _EXPORTER,
    "command": _COMMAND,
    "quant-format": _QUANT_FORMAT,
}

_TEST_PASS = """


def test_it_drops_a_cast_and_then_rests():
    from cacheir.ir import GraphBuilder
    from cacheir.pipeline.context import PassContext
    from $module import $word

    ops = plugin_host("$module").ops.by_name()
    builder = GraphBuilder("g", ops)
    x = builder.input("x", "f32[4]")
    graph = builder.finish(builder.op("negate", builder.op("cast", x, dtype="f32")))
    once = $word(graph, PassContext(ops=ops))
    assert [op.name for op in once.ops] == ["negate"]
    assert $word(once, PassContext(ops=ops)) is once
"""

_TEST_OP = """


def test_its_meaning_is_a_valid_graph():
    from cacheir.ir import GraphBuilder, verify
    from $module import decompose

    ops = plugin_host("$module").ops.by_name()
    builder = GraphBuilder("g", ops, dims=[("T", 1, 8)])
    graph = builder.finish(builder.op("$word", builder.input("x", "bf16[T, 4]")))
    meaning = decompose(graph.ops[0])
    verify(meaning, ops)
    assert [value.type for value in meaning.outputs] == [graph.outputs[0].type]
"""

# What is tested beyond what every plugin must do.
TESTS = {"pass": _TEST_PASS, "op": _TEST_OP}
