"""Where an answer came from: the kernels, passes and plugins of its program, and the step and pages of each token.

The engine never imports this file. A job that asks brings a ``Trace``; one that does not costs a comparison with None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacheir.runtime.pages import FREED

if TYPE_CHECKING:
    from cacheir.artifact.artifact import Artifact
    from cacheir.plugins.specs import PassRecord
    from cacheir.runtime.pages import PageTable
    from cacheir.schedule.schedule import Schedule

# What a step can be to a token: the end of a prompt, one step after another, several in one call, a guess checked.
STEPS = ("prefill", "decode", "run_ahead", "draft")


@dataclass(frozen=True)
class TokenSource:
    """One sampled token. ``position`` is its place in the sequence, the prompt's first token at 0.

    ``table`` is the number of the page table in ``Trace.tables`` that its step read.
    """

    token: int
    step: str  # of STEPS
    position: int
    table: int


class Trace:
    """Filled by the engine while it answers ``Job.trace``'s job: a source for every token that was sampled.

    ``tables`` holds each page table once, by KV group: the pages of all positions before the token, ``FREED`` for those
    behind a window. To be read once the job has ended. A page that turned out to be a copy of one in the prefix index
    is named as the step knew it.
    """

    def __init__(self) -> None:
        self.tokens: list[TokenSource] = []
        self.tables: list[tuple[PageTable, ...]] = []

    def note(
        self, tokens: Sequence[int], step: str, position: int, tables: tuple[PageTable, ...], page_tokens: int
    ) -> None:
        """``tokens`` were sampled by ``step`` for the positions from ``position`` on, by what ``tables`` hold."""
        for number, token in enumerate(tokens):
            read = -(-(position + number) // page_tokens)  # pages may be reserved beyond those that were read
            found = tuple(table[:read] for table in tables)
            if not self.tables or self.tables[-1] != found:
                self.tables.append(found)
            self.tokens.append(TokenSource(token, step, position + number, len(self.tables) - 1))

    def as_json(self) -> dict[str, Any]:
        """``page_tables`` (table, KV group, page; null where it was freed) and ``tokens`` as JSON values."""
        return {
            "page_tables": [
                [[None if page == FREED else page for page in pages] for pages in table] for table in self.tables
            ],
            "tokens": [
                {"id": one.token, "step": one.step, "position": one.position, "page_table": one.table}
                for one in self.tokens
            ],
        }


def made_by(artifact: Artifact) -> dict[str, Any]:
    """The ledger of an open artifact as JSON values: ``kernels`` by mode and op, ``passes``, and ``plugins``.

    ``ArtifactDamagedError`` where the records of its passes cannot be read.
    """
    plugins = [
        {"name": name, "distribution": lock.distribution, "version": lock.version, "fingerprint": lock.fingerprint}
        for name, lock in artifact.lock.plugins.items()
    ]
    kernels = [row for schedule in artifact.program.schedules.values() for row in _kernels(schedule)]
    return {
        "program_key": artifact.lock.program_key,
        "kernels": kernels,
        "passes": _passes(artifact.records()),
        "plugins": plugins,
    }


def _kernels(schedule: Schedule) -> Iterator[dict[str, Any]]:
    """A row for each kernel of each op; ``kernel`` None runs the op by its meaning. Calls of layers are none."""
    nodes: dict[tuple[str, str], int] = {}
    plugins: dict[str, str] = {}
    for graph in schedule.graphs:
        for entry in graph.entries:
            for choice in entry.choices:
                plugins.update((one.kernel, one.plugin) for one in choice.candidates if one.kernel == choice.kernel)
            # Row classes with one kernel count once.
            for kernel in dict.fromkeys(choice.kernel for choice in entry.choices):
                if kernel != "call":
                    nodes[entry.op_name, kernel] = nodes.get((entry.op_name, kernel), 0) + 1
    for (op, kernel), count in sorted(nodes.items()):
        plugin = plugins.get(kernel)
        yield {"mode": schedule.mode, "op": op, "kernel": kernel or None, "plugin": plugin, "nodes": count}


def _passes(records: Sequence[PassRecord]) -> list[dict[str, Any]]:
    """A row for each pass and mode, in the order in which they ran: how many of its runs changed a graph."""
    rows: dict[tuple[str, str, str, str], list[PassRecord]] = {}
    for record in records:
        rows.setdefault((record.name, record.plugin, str(record.stage), record.mode), []).append(record)
    return [
        {
            "name": name,
            "plugin": plugin,
            "stage": stage,
            "mode": mode or None,
            "runs": len(group),
            "changed": sum(record.outcome == "changed" for record in group),
        }
        for (name, plugin, stage, mode), group in rows.items()
    ]
