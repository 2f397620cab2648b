"""A runtime over the fake model, with all of an artifact that may be asked for without files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cacheir.artifact.lock import Lock, PluginLock
from cacheir.plugins.specs import PassRecord, Stage
from cacheir.runtime.open_model import OpenModel
from cacheir.runtime.runtime import Runtime

PLUGIN = PluginLock(distribution="cacheir-core", version="1", fingerprint="f" * 64)
RECORDS = tuple(
    PassRecord(
        name="drop", plugin="core", stage=Stage.MODE, mode="decode", outcome=outcome, before="", after="", seconds=0.0
    )
    for outcome in ("changed", "unchanged")
)


class FakeRuntime(Runtime):
    """A runtime over a model that is open already; its artifact names one plugin and a pass that ran twice."""

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        lock = Lock(program_key="fake", core="", header_hash="", plugins={"core": PLUGIN})
        self.artifact: Any = SimpleNamespace(lock=lock, program=model.program, records=lambda: RECORDS)
