"""The IR: types, graphs and modules, their text, their rules, and the ways to change them. Standard library only."""

from __future__ import annotations

from cacheir.ir import patterns
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.dims import Dim, dim
from cacheir.ir.graph import LAYER, Attr, Graph, Module, Op, Value, Weight
from cacheir.ir.json_form import graph_from_json, graph_to_json, module_from_json, module_to_json
from cacheir.ir.opdef import AttrDef, Effects, OpDef, Operand
from cacheir.ir.parser import parse_graph, parse_module
from cacheir.ir.printer import graph_hash, print_graph, print_module
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.type_parser import parse_type
from cacheir.ir.types import KVType, QuantType, TensorType, Type

# The function takes the name of its module here; ``from cacheir.ir.verify import ...`` finds the module all the same.
from cacheir.ir.verify import Problem, module_problems, problems, verify, verify_module
from cacheir.ir.weights import Derived, Recipe, Stored

__all__ = [
    "LAYER",
    "Attr",
    "AttrDef",
    "Derived",
    "Dim",
    "Effects",
    "Graph",
    "GraphBuilder",
    "KVType",
    "Module",
    "Op",
    "OpDef",
    "Operand",
    "Problem",
    "QuantType",
    "Recipe",
    "Rewriter",
    "Stored",
    "TensorType",
    "Type",
    "Value",
    "Weight",
    "dim",
    "graph_from_json",
    "graph_hash",
    "graph_to_json",
    "module_from_json",
    "module_problems",
    "module_to_json",
    "parse_graph",
    "parse_module",
    "parse_type",
    "patterns",
    "print_graph",
    "print_module",
    "problems",
    "verify",
    "verify_module",
]
