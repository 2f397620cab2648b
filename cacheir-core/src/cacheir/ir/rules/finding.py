"""What a rule says about a graph, and what it may know besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cacheir.ir.graph import Graph
from cacheir.ir.opdef import OpDef
from cacheir.quick_dataclass import dataclass


class Finding(NamedTuple):
    """One broken rule: the line of the graph's text that it is about, the rule's name, and a sentence."""

    line: int
    rule: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What surrounds the graph: ``callees`` is None where nothing is known of the graphs that it may call.

    ``is_called`` is False for main and the heads, which no call gives a layer; ``stage`` is ``""`` where no stage asks.
    """

    ops: Mapping[str, OpDef]
    callees: Mapping[str, Graph] | None = None
    is_called: bool = True
    stage: str = ""
