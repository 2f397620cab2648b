"""``cacheir execute``: a plain graph (ONNX, StableHLO) on arrays from files."""

from __future__ import annotations

import io
import math
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from cacheir.cli.output import print_json
from cacheir.errors import UsageError
from cacheir.runtime.run_module import run_module
from cacheir.weights.atomic_file import write_file

app = typer.Typer(help="Run a plain graph on arrays.", add_completion=False, rich_markup_mode=None)

_INPUT = typer.Option([], "--input", "-i", help="An input of the graph: name=file.npy; may be given several times.")
_OUTPUT = typer.Option(None, "--output", "-o", help="An .npz file to write the results to, as out0, out1, ...")


@app.command()
def execute(
    model: str = typer.Argument(help="An artifact, a .stablehlo, .mlir or .onnx file."),
    inputs: list[str] = _INPUT,
    output: Path | None = _OUTPUT,
    backend: str = typer.Option("auto", help="The backend that runs it."),
) -> None:
    """Run a plain graph on arrays and print what comes out."""
    results = run_module(model, _read(inputs), backend=backend, progress=lambda text: print(text, file=sys.stderr))
    if output is not None:
        import numpy as np

        held = io.BytesIO()
        np.savez(held, **{f"out{number}": array for number, array in enumerate(results)})
        write_file(output, held.getvalue())
        return
    print_json([_described(number, array) for number, array in enumerate(results)])


def _read(texts: Sequence[str]) -> dict[str, Any]:
    import numpy as np

    arrays: dict[str, Any] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise UsageError(f"cannot read --input {text!r}", hint="write --input x=x.npy")
        if name in arrays:
            raise UsageError(f"--input gives {name} twice")
        try:
            array = np.load(file, allow_pickle=False)
        # MemoryError: a shape in the file's header that no file is as large as.
        except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
            raise UsageError(f"--input {name}: {file} is no .npy file that can be read: {error}") from error
        if not isinstance(array, np.ndarray):
            raise UsageError(f"--input {name}: {file} holds several arrays", hint="save one array with numpy.save")
        arrays[name] = array
    return arrays


def _described(number: int, array: Any) -> dict[str, object]:
    shown: dict[str, object] = {"name": f"out{number}", "dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size > 64:
        return shown
    values = array.tolist()
    # JSON has no NaN and no infinities: they are written as the texts "nan", "inf" and "-inf".
    return {**shown, "values": values if array.dtype.kind != "f" else _json_numbers(values)}


def _json_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_numbers(item) for item in value]
    return value if math.isfinite(value) else str(value)
