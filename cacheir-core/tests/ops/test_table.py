"""The table of ops: every definition is whole, light to import, and its examples hold together."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.opdef import DIALECTS
from cacheir.ir.types import KVType, TensorType
from cacheir.ops.table import core_ops
from cacheir.plugins import resolve
from cacheir.reference.interpreter import Interpreter
from cacheir.testing.arrays import example_op, random_operands

OPS = core_ops()


def test_importing_the_table_imports_no_numpy() -> None:
    code = "import sys; from cacheir.ops.table import core_ops; core_ops(); print('numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


def test_each_call_gives_a_table_of_its_own() -> None:
    first = core_ops()
    first.clear()
    assert core_ops()


@pytest.mark.parametrize("name", OPS)
def test_a_definition_is_whole(name: str) -> None:
    definition = OPS[name]
    assert definition.name == name
    assert definition.dialect in DIALECTS
    assert definition.doc and all(operand.doc for operand in definition.operands)
    assert all(attr.doc for attr in definition.attrs)
    for attr in definition.attrs:
        assert attr.default is None or type(attr.default) is attr.kind
    assert callable(resolve(definition.reference or definition.decompose))


@pytest.mark.parametrize("name", OPS)
def test_examples_evaluate_to_their_inferred_types(name: str) -> None:
    definition = OPS[name]
    examples = resolve(definition.examples)()
    assert examples
    rng = np.random.default_rng(7)
    for types, attrs in examples:
        op = example_op(definition, types, attrs)
        results = Interpreter(OPS).apply(op, random_operands(rng, op), {})
        for value, result in zip(op.results, results, strict=True):
            if isinstance(value.type, TensorType):
                assert result.dtype == numpy_dtype(value.type.dtype)
                if all(size.is_constant for size in value.type.shape):
                    assert result.shape == value.type.sizes({})


@pytest.mark.parametrize("name", [name for name, definition in OPS.items() if definition.decompose])
def test_a_decomposition_takes_the_operands_and_yields_the_results(name: str) -> None:
    definition = OPS[name]
    for types, attrs in resolve(definition.examples)():
        op = example_op(definition, types, attrs)
        graph = resolve(definition.decompose)(op)  # the builder verifies it
        assert [value.type for value in graph.params] == [value.type for value in op.operands]
        assert [value.type for value in graph.outputs] == [value.type for value in op.results]
        assert [value.origin for value in graph.params] == [
            "state" if isinstance(type_, KVType) else "input" for type_ in types
        ]
