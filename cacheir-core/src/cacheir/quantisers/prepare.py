"""Before a compile: the spelling of ``quant``, and the checkpoint of a quantiser that needs a text, made or reused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cacheir.artifact.card import CompileOptions
from cacheir.plugins.installation import Installation
from cacheir.quantisers.choose import needs_calibration, quant_text

Progress = Callable[[str], None]


def with_quantised(
    path: Path, options: CompileOptions, installation: Installation, progress: Progress | None
) -> tuple[Path, CompileOptions]:
    """What is to be compiled instead of the model at ``path``, and how.

    A quantiser without calibration changes nothing but the spelling of its name: its plan is carried out by recipes.
    One with calibration has written its weights into a checkpoint, which is compiled as it is.
    """
    options = replace(options, quant=quant_text(options.quant))
    if not options.quant or not needs_calibration(options.quant, installation):
        return path, options
    from cacheir.quantisers.quantise_model import cached_checkpoint

    return cached_checkpoint(path, options.quant, installation, progress or (lambda text: None)), replace(
        options, quant=""
    )
