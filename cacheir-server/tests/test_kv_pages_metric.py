"""The gauge of KV pages by state adds up to a pool, with windows too."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cacheir.testing.fake_model import GROUPS, FakeExecutor


@pytest.mark.parametrize("kinds", [GROUPS[:1], GROUPS, GROUPS[1:]])
def test_pages_by_state_are_those_of_a_pool(make, kinds):
    """The second group has a window: where it is alone, more blocks are known than there are pages."""
    bench = make(FakeExecutor(page_tokens=4, kinds=kinds), kv_tokens=128)
    for number in range(9):
        bench.post("/v1/completions", prompt=f"{number}" * 90, max_tokens=9, temperature=0)
    pages = {}
    for family in text_string_to_metric_families(bench.client.get("/metrics").text):
        if family.name == "cacheir_kv_pages":
            pages = {sample.labels["state"]: sample.value for sample in family.samples}
    assert pages["used"] == 0 and pages["cached"] > 0 and pages["free"] >= 0
    assert sum(pages.values()) in {pool.size for pool in bench.engine.state.kv.pools}
