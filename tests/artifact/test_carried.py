"""An artifact with its weights takes a backend's compiled kernels along, by hash; an executor gets their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacheir import Runtime, compile_model
from cacheir.artifact.verify import verify_artifact
from cacheir.plugins.installation import default
from cacheir_importers.tiny import write_tiny

pytest.importorskip("torch", reason="PyTorch is not installed, and without it there is no CUDA backend to compile for")

from cacheir_cuda.chain import cubins

NAME, IMAGE = "decode_chain.sm_90a.cubin", b"\x7fELF as good as any"


def test_an_artifact_brings_cubins_that_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    monkeypatch.setattr(cubins, "carried", lambda: {NAME: IMAGE})
    model = tmp_path / "model"
    write_tiny(model, family="llama")
    linked = compile_model(model, target="cuda", output=tmp_path / "linked.cacheir")
    whole = compile_model(model, target="cuda", output=tmp_path / "whole.cacheir", materialise=True)
    assert linked.carried is None and whole.carried is not None
    assert (whole.carried / NAME).read_bytes() == IMAGE and f"kernels/{NAME}" in whole.card.files
    assert not verify_artifact(whole.path, default()).findings
    with Runtime(str(whole.path)) as runtime:
        refused = [name for name in runtime.counters() if name.startswith("carried_refused: ")]
        assert len(refused) == 1 and ("manifest names" in refused[0] or "is not loaded" in refused[0])
    (whole.carried / NAME).write_bytes(IMAGE + b"!")
    assert [found.file for found in verify_artifact(whole.path, default()).findings] == [f"kernels/{NAME}"]
