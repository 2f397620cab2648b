"""The planning step choose-layouts: in which layout the chosen kernels hold each weight, for all modes together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cacheir.ir.graph import Module, Op
from cacheir.ir.weights import resolve_recipe
from cacheir.schedule.schedule import Schedule

LayoutsOf = Callable[[str], tuple[str, ...]]  # kernel name -> the words of its operands, () for as stored
JOINED = "+"  # the word for an operand that is joined to the one before it


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """Weights that are held as one, in ``layout`` ("" as stored), by recipe with the layer's mark left in.

    ``kernels`` are those that read them so, ``graphs`` where, both sorted.
    """

    weights: tuple[str, ...]
    layout: str
    kernels: tuple[str, ...]
    graphs: tuple[str, ...]


def choose_layouts(
    modules: Mapping[str, Module], schedules: Mapping[str, Schedule], layouts_of: LayoutsOf
) -> tuple[WeightLayout, ...]:
    """Every layout in which a weight of the program is held, sorted; a weight that stands in two is held twice.

    An op that runs by its meaning reads its weights as they are stored.
    """
    found: dict[tuple[tuple[str, ...], str], tuple[set[str], set[str]]] = {}
    for mode, module in modules.items():
        for graph in module.graphs:
            for entry in schedules[mode].graph(graph.name).entries:
                op = graph.ops[entry.op]
                for kernel in {choice.kernel for choice in entry.choices} if not op.callee else ():
                    for names, word in _held(op, layouts_of(kernel) if kernel else ()):
                        recipes = tuple(resolve_recipe(name, graph.recipes, None) for name in names)
                        kernels, graphs = found.setdefault((recipes, word), (set(), set()))
                        kernels.add(kernel)
                        graphs.add(graph.name)
    return tuple(
        WeightLayout(weights=weights, layout=word, kernels=tuple(sorted(kernels)), graphs=tuple(sorted(graphs)))
        for (weights, word), (kernels, graphs) in sorted(found.items())
    )


def held_twice(layouts: tuple[WeightLayout, ...]) -> dict[str, tuple[WeightLayout, ...]]:
    """Recipe -> the layouts of a weight that has several."""
    by_weight: dict[str, list[WeightLayout]] = {}
    for layout in layouts:
        for weight in layout.weights:
            by_weight.setdefault(weight, []).append(layout)
    return {weight: tuple(several) for weight, several in by_weight.items() if len(several) > 1}


def layout_notes(layouts: tuple[WeightLayout, ...]) -> tuple[str, ...]:
    """What was chosen, in sentences: how many weights are held how, and each that is held twice."""
    counts: dict[str, int] = {}
    for layout in layouts:
        word = f"in the layout {layout.layout}" if layout.layout else "as stored"
        number = len(layout.weights)
        word = f"{number} weights joined, {word}" if number > 1 else f"one weight {word}"
        counts[word] = counts.get(word, 0) + 1
    notes = [f"{word}: {count} in the graphs" for word, count in sorted(counts.items())]
    for weight, several in held_twice(layouts).items():
        ways = " and ".join(
            f"{one.layout or 'as stored'} for {', '.join(kernel or 'the meaning' for kernel in one.kernels)}"
            for one in several
        )
        notes.append(f"{weight} is held {len(several)} times: {ways}")
    return tuple(notes) or ("no op reads a weight",)


def _held(op: Op, words: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    """(names of the weights that are held as one, layout) for each operand that is a weight."""
    held: list[tuple[tuple[str, ...], str]] = []
    for number, value in enumerate(op.operands):
        if value.origin != "weight":
            continue
        word = words[number] if number < len(words) else ""
        if word == JOINED and held:
            names, first = held[-1]
            held[-1] = ((*names, value.name), first)
        else:
            held.append(((value.name,), word))
    return held
