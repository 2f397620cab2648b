"""Two reports of one model become one: what was not measured again stays, each row with the run that it is of."""

from __future__ import annotations

from typing import Any

import pytest

from cacheir.bench.against.merge import merged
from cacheir.bench.against.tables import markdown


def sample(cell: str, label: str, seconds: float, number: int = 0) -> dict[str, Any]:
    return {
        "cell": cell, "label": label, "engine": label.partition(", ")[0], "part": "round", "number": number,
        "seconds": [seconds], "probe_before": 1e9, "probe_after": 1e9, "foreign_load": 0.0, "invalid": [],
    }  # fmt: skip


def report(run: str, samples: list[dict[str, Any]], **given: Any) -> dict[str, Any]:
    """As compare() makes it; without a name as it made it before runs had any."""
    labels = dict.fromkeys(each["label"] for each in samples)
    around = {"cpu": {"model": "c"}, "cacheir": {"commit": f"commit of {run}"}}
    made = {
        "model": "m", "threads": 2, "decode_bytes": 8, "engines": {label: {} for label in labels}, "refused": {},
        "missing": {}, "environment": around, **given,
    }  # fmt: skip
    if not run:
        return {**made, "samples": samples}
    runs = {run: {"commit": around["cacheir"]["commit"], "decode_bytes": 8, "engines": made["engines"]}}
    return {**made, "runs": runs, "samples": [{**each, "run": run} for each in samples]}


def row(whole: dict[str, Any], cell: str, label: str) -> dict[str, Any]:
    (found,) = [each for each in whole["rows"] if (each["cell"], each["label"]) == (cell, label)]
    return found


def test_cells_measured_before_stay_beside_those_measured_now() -> None:
    before = report("", [sample("prefill-16", "cacheir", 1.0), sample("decode-128", "cacheir", 1.0)])
    whole = merged(before, report("b", [sample("decode-128", "cacheir", 2.0)]))
    assert [(each["cell"], each["seconds"]) for each in whole["samples"]] == [
        ("prefill-16", [1.0]),
        ("decode-128", [2.0]),
    ]
    assert {each["cell"]: each["tokens_per_s"] for each in whole["rows"]} == {"prefill-16": 16.0, "decode-128": 64.0}
    assert set(whole["runs"]) == {"", "b"}


@pytest.mark.parametrize("first", ["", "a"])
def test_a_peer_that_was_not_asked_again_keeps_its_row_and_is_compared_with_ours_of_its_run(first: str) -> None:
    cell = "decode-128"
    before = report(first, [sample(cell, "cacheir", 2.0), sample(cell, "openvino", 6.0), sample(cell, "other", 1.0)])
    now = report("b", [sample(cell, "cacheir", 1.0), sample(cell, "other", 3.0)])
    whole = merged(before, now)
    assert row(whole, cell, "cacheir")["tokens_per_s"] == 128.0
    assert (row(whole, cell, "openvino")["our_ratio"], row(whole, cell, "openvino")["earlier"]) == (3.0, True)
    assert (row(whole, cell, "other")["our_ratio"], row(whole, cell, "other")["earlier"]) == (3.0, False)
    assert "3.00x in an earlier run" in markdown(whole)
    # Once it has run again, nothing of the earlier run is left.
    last = merged(whole, report("c", [sample(cell, each, 1.0) for each in ("cacheir", "openvino", "other")]))
    assert {each["run"] for each in last["samples"]} == {"c"} == set(last["runs"])


def test_another_setting_of_a_peer_takes_the_place_of_its_earlier_one() -> None:
    before = report("a", [sample("decode-128", each, 1.0) for each in ("cacheir", "llama.cpp, plain")])
    now = report("b", [sample("decode-128", each, 1.0) for each in ("cacheir", "llama.cpp, huge pages")])
    assert {each["label"] for each in merged(before, now)["rows"]} == {"cacheir", "llama.cpp, huge pages"}


def test_a_run_beside_other_work_takes_no_row_away() -> None:
    cell = "decode-128"
    good = report("a", [sample(cell, "cacheir", 2.0), sample(cell, "other", 6.0)])
    spoilt = [{**sample(cell, each, 9.0), "invalid": ["load"]} for each in ("cacheir", "other")]
    now = report("b", [*spoilt, sample("prefill-16", "cacheir", 1.0)])
    whole = merged(good, now)
    assert row(whole, cell, "other")["our_ratio"] == 3.0 and row(whole, cell, "cacheir")["valid"]
    assert row(whole, "prefill-16", "cacheir")["run"] == "b"
    # Where there was no better one before, it stands as what it is.
    assert not row(merged(report("a", spoilt), report("b", spoilt)), cell, "cacheir")["valid"]


def test_reasons_stay_until_the_peer_has_run() -> None:
    ours = sample("decode-128", "cacheir", 1.0)
    before = report(
        "a", [ours], missing={"openvino": "not installed", "other": "no file"},
        refused={"decode-128": {"third": "no batches", "llama.cpp, plain": "too long"}, "prefill-16": {"third": "no"}},
    )  # fmt: skip
    whole = merged(before, report("b", [ours, sample("decode-128", "openvino", 1.0)], missing={"other": "broken"}))
    assert whole["missing"] == {"other": "broken"}
    assert whole["refused"] == before["refused"]
    whole = merged(whole, report("c", [ours, sample("decode-128", "third", 1.0)]))
    assert whole["refused"] == {"decode-128": {"llama.cpp, plain": "too long"}, "prefill-16": {"third": "no"}}
