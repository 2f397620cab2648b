"""Whether the graphs hold the steps that a card allows: memory was planned for the sizes of the graphs."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.artifact.card import Card
from cacheir.ir.graph import Graph, Module


def size_problems(card: Card, module: Module) -> Iterator[str]:
    """Every size of main and the heads that is smaller than a step within the limits of ``card``, in sentences.

    A graph that holds more than the card allows is fine. Called graphs are the verifier's: it compares their bounds
    with what their callers give them.
    """
    for graph in (module.main, *module.heads):
        upper_bounds = {name: high for name, _, high in graph.dims}
        for size, limit, needed in _needs(card, module, graph):
            upper = upper_bounds.get(size, needed)
            if upper < needed:
                yield f"@{graph.name} was planned for {size} up to {upper}, and {limit} is {needed}"


def _needs(card: Card, module: Module, graph: Graph) -> tuple[tuple[str, str, int], ...]:
    """(size, the limit that it follows, what it must reach). A page holds a token or more; decode has a token a row."""
    rows, tokens = ("max_rows", card.max_rows), ("max_tokens", card.max_tokens)
    if graph is not module.main:
        return (("R", *rows),)
    pages = ("M", "max_seq", card.max_seq)
    if module.mode == "prefill":
        return (("T", *tokens), ("R", *tokens), ("B", *rows), pages)
    if module.mode == "decode":
        return (("T", *rows), ("R", *rows), pages)
    return ()  # a plain graph has no steps
