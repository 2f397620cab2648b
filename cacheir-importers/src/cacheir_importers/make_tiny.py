"""The command `cacheir make-tiny`: writes a tiny random model to try things on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Optional

import typer

from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TINY_FAMILIES, TINY_SEEDS, TinyShape


def make_tiny(
    directory: Annotated[Path, typer.Argument(help="The folder to write; it must be new or empty.")],
    family: Annotated[str, typer.Option(help=f"The family of the model: {', '.join(TINY_FAMILIES)}.")] = "llama",
    seed: Annotated[
        Optional[int],  # noqa: UP045  typer reads it at run time
        typer.Option(min=0, max=2**32 - 1, help="Equal seeds give equal weights; the family's own by default."),
    ] = None,
    vocab: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = TinyShape.vocab,
    layers: Annotated[int, typer.Option(min=1, max=64, help="Layers of the model.")] = TinyShape.layers,
) -> None:
    """Write a tiny random model as a Hugging Face folder."""
    shape = TinyShape(vocab=vocab, layers=layers)
    tensors = write_tiny(directory, family=family, seed=seed, shape=shape)
    numbers = sum(math.prod(size) for size in tensors.values())
    typer.echo(
        f"{directory}: {family} with {layers} layers, hidden size {shape.hidden}, {vocab} tokens, {numbers:,} weights,"
        f" seed {TINY_SEEDS[family] if seed is None else seed}"
    )
    typer.echo(f'try: cacheir run {directory} --prompt "The same prompt"')
