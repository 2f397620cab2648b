"""Nodes that run by their meaning although a kernel takes them: what ``--unfuse`` asks for, to find a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cacheir.errors import UsageError
from cacheir.schedule.flatten import Launch
from cacheir.schedule.schedule import Choice

_BY_MEANING = (Choice(rows_up_to=0, kernel="", reason="unfused by --unfuse"),)

# (mode, root graph) -> its launches
Launches = Mapping[tuple[str, str], Sequence[Launch]]


def unfuse(launches: Launches, names: Sequence[str]) -> dict[tuple[str, str], list[Launch]]:
    """``launches`` with the named nodes run by their meaning.

    A name is ``product``, ``product@3`` for layer 3 alone, and either with a graph, or a mode and a graph, before it:
    ``decoder_layer/product@3``, ``decode/decoder_layer/product@3``. Raises UsageError for one that no launch has.
    """
    wanted = {_plain(name): name for name in names}
    met: set[str] = set()
    result = {}
    for (mode, root), group in launches.items():
        kept = result[mode, root] = list(group)
        for number, launch in enumerate(group):
            if found := [name for name in _names_of(mode, launch) if name in wanted]:
                met.update(found)
                kept[number] = replace(launch, choices=_BY_MEANING)
    for plain, name in wanted.items():
        if plain not in met:
            raise UsageError(
                f"--unfuse names {name!r}, which the program does not have",
                hint="write NODE, NODE@LAYER or MODE/GRAPH/NODE@LAYER; cacheir inspect MODEL --kernels lists the nodes",
            )
    return result


def address(mode: str, graph: str, node: str, layer: int | None) -> str:
    """The name that means this launch and no other."""
    return f"{mode}/{graph}/{node}" + ("" if layer is None else f"@{layer}")


def _plain(name: str) -> str:
    """``%product`` and ``@decoder_layer/%product`` without the marks that graphs and values print with."""
    *places, node = name.split("/")
    return "/".join([*(place.removeprefix("@") for place in places), node.removeprefix("%")])


def _names_of(mode: str, launch: Launch) -> list[str]:
    """Every name that means ``launch``, alone or with others."""
    nodes = [launch.node] if launch.layer is None else [launch.node, f"{launch.node}@{launch.layer}"]
    return [place + node for node in nodes for place in ("", f"{launch.graph}/", f"{mode}/{launch.graph}/")]
