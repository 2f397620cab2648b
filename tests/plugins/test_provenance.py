"""The provenance of a real artifact: kernels, passes and plugins as ``cacheir plugins ledger`` has them."""

from __future__ import annotations

from pathlib import Path

from cacheir import Runtime
from cacheir.cli.show_ledger import read_ledger
from cacheir.plugins.installation import default
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.provenance import Trace, made_by
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams


def test_it_agrees_with_the_ledger_and_traces_real_tokens(smollm2_path: Path) -> None:
    with Runtime(smollm2_path, "cpu", max_seq=64) as runtime:
        found, model = made_by(runtime.artifact), runtime.model
        ids = tuple(runtime.encode("The capital of France is"))
        job = Job(id="a", ids=ids, sampling=admit(len(ids), SamplingParams(max_tokens=2), model.limits), trace=Trace())
        (events,) = Engine(model).generate([job])
        ledger = read_ledger(runtime.artifact.path, default())
    rows = {(row.name, row.plugin) for row in ledger.rows if row.kind == "kernel" and not row.name.startswith("(")}
    assert rows and {(row["kernel"], row["plugin"]) for row in found["kernels"] if row["kernel"]} == rows
    assert {row["mode"] for row in found["kernels"]} == {"prefill", "decode"}
    assert {row["name"] for row in found["passes"]} == {row.name for row in ledger.rows if row.kind == "pass"}
    assert any(row["changed"] for row in found["passes"])
    plugins = {(each["name"], each["fingerprint"]) for each in found["plugins"]}
    assert plugins == {(each.name, each.fingerprint) for each in ledger.plugins}
    assert [one.position for one in job.trace.tokens] == [len(ids), len(ids) + 1]
    assert [one.token for one in job.trace.tokens] == [token for event in events for token in event.ids]
