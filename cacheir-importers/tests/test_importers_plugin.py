"""The plugin is thin, and everything it names is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cacheir.plugins import CommandSpec, resolve
from cacheir.plugins.specs import FamilySpec, ImporterSpec, ModelSpec, TokenizerSpec, UnpackerSpec
from cacheir_importers import plugin
from cacheir_importers.gguf import tokenizer_arrays
from cacheir_importers.huggingface import tokenizer_files
from cacheir_importers.huggingface.tekken import TEKKEN_KIND
from cacheir_importers.huggingface.tokenizer_model import MODEL_KIND

HEAVY = ("numpy", "tokenizers", "safetensors", "typer", "torch", "gguf", "transformers")


def modules_after(code: str) -> set[str]:
    report = f"import sys\n{code}\nprint(*sorted(m for m in {HEAVY!r} if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import cacheir_importers.plugin as p\n" + "\n".join(
        f"list(p.cacheir_register_{kind}())" for kind in ("importers", "families", "tokenizers", "models", "commands")
    )
    assert modules_after(code) == set()


def test_opening_a_model_needs_no_numpy() -> None:
    code = "import cacheir_importers.gguf.importer, cacheir_importers.huggingface.importer"
    assert modules_after(code) == set()


@pytest.mark.parametrize(
    ("hook", "record", "references"),
    [
        (plugin.cacheir_register_importers, ImporterSpec, ("run", "sniff")),
        (plugin.cacheir_register_families, FamilySpec, ("config", "gguf_config", "names")),
        (plugin.cacheir_register_tokenizers, TokenizerSpec, ("load",)),
        (plugin.cacheir_register_unpackers, UnpackerSpec, ("run",)),
        (plugin.cacheir_register_models, ModelSpec, ("find",)),
        (plugin.cacheir_register_commands, CommandSpec, ("app",)),
    ],
)
def test_every_reference_resolves(hook: object, record: type, references: tuple[str, ...]) -> None:
    specs = list(hook())  # type: ignore[operator]
    assert specs
    for spec in specs:
        assert isinstance(spec, record)
        for name in references:
            value = getattr(spec, name)
            assert value is None or callable(resolve(value))


def test_kinds_of_tokenizers_are_the_ones_that_sources_name() -> None:
    names = {spec.name for spec in plugin.cacheir_register_tokenizers()}
    assert names == {*tokenizer_arrays.KINDS, tokenizer_files.KIND, TEKKEN_KIND, MODEL_KIND}
