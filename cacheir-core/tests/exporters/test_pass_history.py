"""The graphs after each pass are those that the passes made, and the changes are the diff's lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cacheir.errors import ArtifactDamagedError
from cacheir.exporters.page_data import PageInput
from cacheir.exporters.pass_history import pass_history
from cacheir.ir import Module
from cacheir.ir.printer import print_op
from cacheir.ops.table import core_ops
from cacheir.passes.table import core_passes
from cacheir.pipeline.program import PipelineOptions, run_pipeline
from cacheir.plugins.specs import PassRecord
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

MakePage = Callable[..., PageInput]


@pytest.mark.parametrize("name", sorted(tiny_decoders()))
def test_undoing_diffs_gives_the_modules_that_the_pipeline_saw(name: str) -> None:
    seen: list[tuple[PassRecord, Module, Module]] = []
    ops, decoder = core_ops(), tiny_decoders()[name]
    passes: list[Any] = [
        SimpleNamespace(spec=spec, plugin=SimpleNamespace(name="core")) for spec in core_passes().values()
    ]
    result = run_pipeline(
        decoder.logical(ops),
        passes,
        ops=ops,
        spec=decoder.spec,
        options=PipelineOptions(limits=LIMITS),
        trace=lambda *step: seen.append(step),
    )
    for mode, module in result.modules.items():
        history = pass_history(module, result.records)
        after = {(str(r.stage), r.name): after for r, _, after in seen if r.mode in ("", mode)}
        assert [(step.stage, step.name) for step in history.steps] == list(after)
        for step in history.steps:
            assert step.module.graphs == after[step.stage, step.name].graphs
        assert history.start.graphs == decoder.logical(ops).graphs
        assert any(step.outcome == "changed" for step in history.steps)


def test_changes_are_the_op_lines_of_the_diffs(tiny_page: MakePage) -> None:
    page = tiny_page("two-classes-window")
    checked = 0
    for module in page.modules.values():
        for step in pass_history(module, page.records).steps:
            diffs = {record.graph: record.diff for record in step.records if record.diff}
            for change in step.changes:
                if step.stage == "program":
                    continue  # its diff is of whole modules, and told graph by graph
                lines = diffs[change.graph].splitlines()[2:]
                wanted = {sign: [line[3:] for line in lines if line.startswith(sign + "  %")] for sign in "+-"}
                assert change.before is not None and change.after is not None
                made = [print_op(change.after.ops[at]) for status, at in change.merged if status == "added"]
                gone = [print_op(change.before.ops[at]) for status, at in change.merged if status == "removed"]
                assert (made, gone) == (wanted["+"], wanted["-"])
                kept = [change.after.ops[at] for status, at in change.merged if status != "removed"]
                assert tuple(kept) == change.after.ops
                checked += 1
            assert {change.graph for change in step.changes} >= set(diffs) - {""}
    assert checked >= 4


def test_graphs_that_a_step_adds_are_new_as_a_whole(tiny_page: MakePage) -> None:
    page = tiny_page("grouped")
    history = pass_history(page.modules["decode"], page.records)
    (step,) = [step for step in history.steps if step.stage == "program"]
    added = {change.graph: change for change in step.changes if change.before is None}
    assert set(added) == {"head.greedy", "head.sampled", "head.hidden"}
    for change in added.values():
        assert change.after is not None
        assert change.merged == tuple(("added", at) for at in range(len(change.after.ops)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda diff: diff.replace("\n+  %", "\n   %", 1),
        lambda diff: diff.replace("@@ -", "@@ -9", 1).replace(" +", " +9", 1),
        lambda diff: diff[: diff.rindex("\n", 0, -1) + 1],
        lambda diff: diff.replace("\n-  %", "\n-  &", 1),
        lambda diff: diff.replace("@@", "@", 1),
        lambda diff: diff + "?\n",
    ],
)
def test_a_diff_that_does_not_fit_is_damage(tiny_page: MakePage, spoil: Callable[[str], str]) -> None:
    page = tiny_page("grouped")
    records = [
        replace(record, diff=spoil(record.diff)) if record.name == "fuse-swiglu" and record.diff else record
        for record in page.records
    ]
    assert records != list(page.records)
    with pytest.raises(ArtifactDamagedError, match="fuse-swiglu"):
        pass_history(page.modules["decode"], records)
