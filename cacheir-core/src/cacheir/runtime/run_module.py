"""Runs a plain graph (ONNX, StableHLO): arrays in, arrays out, no requests, no cache, no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.errors import IRError, UsageError
from cacheir.ir.weights import Stored
from cacheir.models.imported import PLAIN_MODE
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import ExecutorOptions
from cacheir.runtime.usable_cores import usable_cores

if TYPE_CHECKING:
    from cacheir.artifact.artifact import Artifact
    from cacheir.ir.graph import Graph
    from cacheir.plugins.installation import Installation


def run_module(
    model: str | Path | Artifact,
    inputs: Mapping[str, Any] | Sequence[Any],
    *,
    backend: str = "auto",
    installation: Installation | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Any, ...]:
    """The outputs of ``@main`` for ``inputs``, by name or in order; NumPy arrays of the types that main declares.

    bf16 arrays are uint16. ``model`` is an artifact, or what ``compile_model`` takes. An executor that has no
    ``run_module`` does not refuse: the graph runs by the meaning of its ops, and ``progress`` is told so.

    Raises UsageError for a model that is a decoder and for inputs that main does not take.
    """
    from cacheir.plugins.installation import default

    installed = installation or default()
    say = progress or (lambda text: None)
    artifact = _open(model, backend, installed, say)
    if PLAIN_MODE not in artifact.program.modules:
        raise UsageError(f"{artifact.path} is a decoder, not a plain graph", hint="cacheir run generates text with it")
    main = artifact.program.modules[PLAIN_MODE].main
    arrays = _checked(main, inputs)
    spec = installed.backends[artifact.program.backend]
    executor = resolve(spec.executor)(ExecutorOptions(threads=usable_cores()))
    runs = getattr(executor, "run_module", None)
    if runs is None:
        say(f"backend {spec.name} has no run_module: the graph runs by the meaning of its ops")
        return _by_meaning(artifact, arrays, installed)
    try:
        executor.load(artifact.program, artifact.open_weights())
        outputs: tuple[Any, ...] = runs(arrays)
    finally:
        executor.close()
    return outputs


def _open(
    model: str | Path | Artifact, backend: str, installation: Installation, say: Callable[[str], None]
) -> Artifact:
    from cacheir.artifact import layout
    from cacheir.artifact.artifact import Artifact
    from cacheir.artifact.card import CompileOptions
    from cacheir.artifact.read import read_card
    from cacheir.compile import open_program
    from cacheir.models.find_model import find_path
    from cacheir.runtime.backend_choice import choose_backend

    if isinstance(model, Artifact):
        choose_backend(installation, backend, demanded=model.card.backend)
        return model
    path = find_path(model, installation)
    demanded = read_card(path).backend if layout.is_artifact(path) else ""
    choice = choose_backend(installation, backend, demanded=demanded)
    return open_program(path, CompileOptions(target=choice.name), installation=installation, progress=say)


def _checked(main: Graph, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """``inputs`` by name, of main's types and of sizes within its bounds."""
    import numpy as np

    from cacheir.reference.interpreter import check_bounds, check_operand
    from cacheir.reference.sizes import bind_shapes

    names = [value.name for value in main.inputs]
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(names):
            raise UsageError(f"the graph takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}")
        inputs = dict(zip(names, inputs))
    if set(inputs) != set(names):
        raise UsageError(f"the graph takes the inputs {', '.join(names) or 'none'}, not {', '.join(inputs) or 'none'}")
    arrays = {name: np.asarray(inputs[name]) for name in names}
    sizes: dict[str, int] = {}
    try:
        for value in main.inputs:
            check_operand(f"input {value.name}", value.type, arrays[value.name])
        shapes = [(f"input {value.name}", value.type.shape, arrays[value.name].shape) for value in main.inputs]  # type: ignore[union-attr]
        bind_shapes(shapes, sizes)
        check_bounds(main, sizes)
    except IRError as error:
        raise UsageError(str(error)) from error
    return arrays


def _by_meaning(artifact: Artifact, arrays: Mapping[str, Any], installation: Installation) -> tuple[Any, ...]:
    from cacheir.reference.interpreter import interpret

    program = artifact.program
    main = program.modules[PLAIN_MODE].main
    # What a recipe makes comes from the store, which may have it ready: to the interpreter every weight is stored.
    weights = tuple(
        replace(weight, recipe=Stored(program.weight_of(PLAIN_MODE, main.name, weight.name, None).recipe))
        for weight in main.weights
        if any(weight.value in op.operands for op in main.ops) or weight.value in main.outputs
    )
    store = artifact.open_weights()
    try:
        return interpret(replace(main, weights=weights), installation.ops.by_name(), store.get, arrays)
    finally:
        store.close()
