"""The operands of a launch as its kernel takes them: ``KernelSpec.layouts`` says which weights are one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cacheir.plugins.specs import KernelSpec
from cacheir.schedule.flatten import Launch, Place

Weights = tuple[str, tuple[str, ...]]  # a layout, and the recipes of the weights that are joined in it


def joined_operands(launch: Launch, spec: KernelSpec | None) -> Iterator[Place | Weights]:
    """The operands in order; None is the op's meaning, which takes every weight as it is stored.

    The word ``+`` joins a weight to the one before it; missing words at the end mean ``""``.
    """
    layouts = spec.layouts if spec else ()
    index = 0
    while index < len(launch.reads):
        first, place = index, launch.reads[index]
        index += 1
        if place.kind != "weight":
            yield place
            continue
        recipes = [place.name]
        while index < min(len(launch.reads), len(layouts)) and layouts[index] == "+":
            recipes.append(launch.reads[index].name)
            index += 1
        yield (layouts[first] if first < len(layouts) else "", tuple(recipes))


def wanted_weights(launches: Sequence[Launch], rows: int, kernels: Mapping[str, KernelSpec]) -> Iterator[Weights]:
    """The weights that ``launches`` read in a step of ``rows`` rows; ``kernels`` are by name."""
    for launch in launches:
        for part in joined_operands(launch, kernels.get(launch.choice(rows).kernel)):
            if not isinstance(part, Place):
                yield part
