"""Checks of a backend that takes several steps without Python: they are the single steps, and end where they should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from cacheir.errors import UsageError
from cacheir.runtime.executor import Row, RowOutput, Step
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.backend_bench import BackendBench
from cacheir.testing.backend_numbers import IDS
from cacheir.testing.opened_backend import OpenedBackend

PROMPT, STEPS = 5, 8  # tokens of a row's prompt, and steps behind it
SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.9, seed=11))
FILL = 0.25  # of pages that nobody has written


class BackendAhead(BackendBench):
    """The part of ``BackendTests`` about ``run_ahead`` and ``Step.then``."""

    def test_running_ahead_is_stepping(self) -> None:
        """Several steps without Python give the tokens of single steps, or the executor refuses."""
        with self.open() as opened, self.open() as other:
            ready = [b.step("prefill", *_prompts(b, SAMPLINGS)) for b in (opened, other)]
            if not opened.executor.capabilities().run_ahead:
                refused = Step(mode="decode", rows=_rows(opened))
                what = "run_ahead of a backend that states run_ahead=False"
                self.must_raise(UsageError, what, lambda: opened.executor.run_ahead(refused, 4, lambda rows: None))
                return
            ahead, taken = _run(opened)
            assert taken == STEPS, f"run_ahead of {STEPS} steps says that it took {taken}"
            assert [row.token for row in ready[0]] == [row.token for row in ready[1]]
            single = _single(other)
            assert _tokens(ahead) == single, f"running ahead gives {_tokens(ahead)}, single steps give {single}"
            wanted = Step(mode="decode", rows=(opened.row(0, IDS[:1], PROMPT + STEPS, want="logits"),))
            what = "run_ahead of a row that wants logits, which needs the host,"
            self.must_raise(UsageError, what, lambda: opened.executor.run_ahead(wanted, 2, lambda rows: None))

    def test_running_ahead_keeps_to_where_answers_end(self) -> None:
        """A row is stopped behind its last token or never; behind it nothing more is stored, and others go on."""
        with self.open() as opened:
            self._needs_to_run_ahead(opened)
            opened.step("prefill", *_prompts(opened, SAMPLINGS))
            plain = _single(opened)
        last = next(number for number in range(1, STEPS) if plain[0][number] not in plain[0][:number])
        ids = SamplingParams(stop_ids=(int(plain[0][last] or 0),))
        for samplings, ended, length in (
            ((ids, SAMPLINGS[1]), 0, last + 1),
            ((SAMPLINGS[0], replace(SAMPLINGS[1], max_tokens=4)), 1, 3),  # the prompt's own token is the first
        ):
            with self.open() as opened:
                opened.fill_pages(FILL)
                opened.step("prefill", *_prompts(opened, samplings))
                ahead, _ = _run(opened)
                assert _tokens(ahead)[1 - ended] == plain[1 - ended], "a row ends, and its neighbour's tokens change"
                mine = ahead[ended]
                assert [one.token for one in mine[:length]] == plain[ended][:length], "an answer's tokens change"
                assert not any(one.stopped for one in mine[:length]), "a row is stopped before its answer's last token"
                behind = [one.stopped for one in mine[length:]]
                assert all(behind) or not any(behind), f"a row behind its end is stopped, and then not: {behind}"
                if any(behind):
                    assert all(one.token is None for one in mine[length:]), "a row that is stopped has no token"
                    _holds_nothing_behind(opened, ended, PROMPT + length)

    def test_a_sink_ends_running_ahead(self) -> None:
        """Where ``stops_ahead`` is stated, a sink that wants no further step gets none; the next step goes on."""
        with self.open() as opened, self.open() as other:
            self._needs_to_run_ahead(opened)
            if not opened.executor.capabilities().stops_ahead:
                pytest.skip("the backend does not state stops_ahead")
            for bench in (opened, other):
                bench.step("prefill", *_prompts(bench, SAMPLINGS))
            expected = _single(other)
            told: list[list[RowOutput]] = [[], []]

            def sink(outputs: Sequence[RowOutput]) -> bool:
                for output in outputs:
                    told[output.slot].append(output)
                return len(told[0]) == 2

            opened.executor.run_ahead(Step(mode="decode", rows=_rows(opened)), STEPS, sink)
            assert _tokens(told) == [row[:2] for row in expected], "a sink that ended the run was told more, or less"
            rows = [opened.row(slot, [int(expected[slot][1] or 0)], PROMPT + 2, draw=3) for slot in range(2)]
            made = [one.token for one in opened.step("decode", *rows)]
            assert made == [row[2] for row in expected], "the step after a run that a sink ended has other tokens"

    def test_steps_behind_prompts_are_steps(self) -> None:
        """``Step.then`` changes no token, whether the steps that it announces come or others."""
        with self.open() as opened, self.open() as other:
            self._needs_to_run_ahead(opened)
            other.step("prefill", *_prompts(other, SAMPLINGS))
            expected = _single(other)
            for comes in (True, False):
                prompts = [_with_pages(opened, row) for row in _prompts(opened, SAMPLINGS)]
                step = Step(mode="prefill", rows=tuple(prompts), then=STEPS)
                opened.executor.wait(opened.executor.submit(step))
                if comes:
                    found = _tokens(_run(opened)[0])
                    assert found == expected, f"steps behind prompts give {found}, single steps give {expected}"
                else:  # another token than the prompt's: what was begun on that one is nobody's
                    given = opened.decode(0, IDS[0], PROMPT, pages=opened.pages_of(0))
                    again = other.prefill(2, (*IDS[:PROMPT], IDS[0]))[-1:]
                    self.compare(given, again, "a step that was not the one announced behind a prompt")

    def _needs_to_run_ahead(self, opened: OpenedBackend) -> None:
        capabilities = opened.executor.capabilities()
        if not capabilities.run_ahead or "token" not in capabilities.heads:
            pytest.skip("the backend does not run ahead")


def _prompts(opened: OpenedBackend, samplings: Sequence[SamplingParams]) -> list[Row]:
    return [opened.row(slot, IDS[slot : slot + PROMPT], sampling=params) for slot, params in enumerate(samplings)]


def _rows(opened: OpenedBackend) -> tuple[Row, ...]:
    """The decode rows behind ``_prompts``, with pages for all steps."""
    return tuple(_with_pages(opened, opened.row(slot, [], PROMPT, draw=1)) for slot in range(len(SAMPLINGS)))


def _with_pages(opened: OpenedBackend, row: Row) -> Row:
    """The row with the pages of all positions that a run reaches."""
    table = opened.pages_of(row.slot)[: -(-(PROMPT + STEPS) // opened.page_tokens)]
    return replace(row, pages=(table,) * len(row.pages))


def _run(opened: OpenedBackend) -> tuple[list[list[RowOutput]], int]:
    """What ``STEPS`` steps ahead report for each row, and how many the executor says it took."""
    told: list[list[RowOutput]] = [[] for _ in SAMPLINGS]

    def sink(outputs: Sequence[RowOutput]) -> None:
        for output in outputs:
            told[output.slot].append(output)

    taken = opened.executor.run_ahead(Step(mode="decode", rows=_rows(opened)), STEPS, sink)
    return told, taken


def _tokens(told: Sequence[Sequence[RowOutput]]) -> list[list[int | None]]:
    return [[output.token for output in row] for row in told]


def _single(opened: OpenedBackend) -> list[list[int | None]]:
    """The tokens of the same steps, one by one."""
    made: list[list[int | None]] = [[] for _ in SAMPLINGS]
    for number in range(STEPS):
        step = [opened.row(slot, [], PROMPT + number, draw=1 + number) for slot in range(len(SAMPLINGS))]
        for output in opened.step("decode", *step):
            made[output.slot].append(output.token)
    return made


def _holds_nothing_behind(opened: OpenedBackend, slot: int, end: int) -> None:
    """The pages of ``slot`` from position ``end`` on are as ``fill_pages`` left them."""
    size = opened.page_tokens
    for group in range(len(opened.tiny.program.groups)):
        for page in range(end // size, -(-(PROMPT + STEPS) // size)):
            (data,) = opened.executor.read_pages(group, [opened.pages_of(slot)[page]])
            behind = data[..., max(0, end - page * size) :, :]
            assert np.all(behind == FILL), f"a row that is stopped stores keys or values behind position {end}"
