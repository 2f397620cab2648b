"""The pages of a computation: when they become known to the prefix index, and when they go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.prefix_node import Node
from cacheir.runtime.engine.state import EngineState
from cacheir.runtime.kv_space import Tables


class Given(NamedTuple):
    """What ``entry`` had before it gave its pages back early."""

    entry: Entry
    nodes: list[Node]
    tables: Tables


def give_back(state: EngineState, entry: Entry) -> None:
    """All pages of ``entry`` go back; the prefix index keeps those that it knows."""
    if not entry.pages:
        return
    enter_late(state, entry)
    state.index.release(entry.nodes)
    entry.nodes = []
    entry.sequence.tables = state.kv.cut(entry.sequence.tables, 0)


def give_back_early(state: EngineState, entries: Sequence[Entry], given: list[Given]) -> None:
    """Those of ``entries`` whose next token is their last give their pages back while it is computed.

    For a call of ``run_ahead`` under way, in which nobody is given pages: whatever that token is, nothing more is
    written for them. What they had is added to ``given``, for ``take_back`` where the token does not come, or the
    vocabulary's mask forbids it. A trace notes pages with each token, so its job keeps them.
    """
    for entry in entries:
        if entry.running and entry.remaining == 1 and entry.job.trace is None:
            given.append(Given(entry, entry.nodes, entry.sequence.tables))  # first: an interrupt may come in between
            give_back(state, entry)


def take_back(state: EngineState, given: Given) -> None:
    """Undoes ``give_back_early`` for a computation that goes on; no page was taken in between, nor a block evicted."""
    entry, nodes, tables = given
    state.index.retain(nodes)
    entry.nodes = nodes
    entry.sequence.tables = state.kv.take_back(tables)


def enter(state: EngineState, entry: Entry) -> None:
    """Whole pages that are new become known to the prefix index."""
    sequence = entry.sequence
    if _has_new_pages(state, entry):
        salt = entry.job.salt
        if state.index.extend(entry.nodes, sequence.ids, sequence.cached, sequence.tables, salt):
            sequence.tables = state.kv.adopted([node.pages for node in entry.nodes], sequence.tables)


def enter_soon(state: EngineState, entry: Entry) -> None:
    """``enter``, where nobody waits who could use the pages once clients are told: while the next step runs.

    Whoever comes is taken in after that, and whoever leaves does it before. Before a step begins pages behind a window
    go back (``apply_step.turn``), which the index can keep only if it has them.
    """
    if not state.outbox.holds or state.waiting or state.kv.windowed:
        enter(state, entry)
    elif _has_new_pages(state, entry):
        entry.enters = True
        state.outbox.post(enter_late, state, entry)


def enter_late(state: EngineState, entry: Entry) -> None:
    """What ``enter_soon`` put off."""
    if entry.enters:
        entry.enters = False
        enter(state, entry)


def _has_new_pages(state: EngineState, entry: Entry) -> bool:
    return state.reuses and entry.sequence.cached // state.kv.page_tokens > len(entry.nodes)
