"""Runs a plain graph (ONNX, StableHLO): arrays in, arrays out, no requests, no cache, no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.arguments import checked_string
from cacheir.errors import IRError, UsageError
from cacheir.ir.weights import resolve_recipe
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

    checked_string("backend", backend)
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, (Mapping, Sequence)):
        raise UsageError(f"inputs must be a dictionary or a list of arrays, not a {type(inputs).__name__}")
    installed = installation or default()
    say = progress or (lambda text: None)
    artifact = _open(model, backend, installed, say)
    if PLAIN_MODE not in artifact.program.modules:
        raise UsageError(f"{artifact.path} is a decoder, not a plain graph", hint="cacheir run generates text with it")
    main = artifact.program.modules[PLAIN_MODE].main
    arrays = _checked(main, inputs)
    spec = installed.backends[artifact.program.backend]
    executor = resolve(spec.executor)(ExecutorOptions(threads=usable_cores(), installation=installed))
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
    import numpy as np

    from cacheir.reference.interpreter import Interpreter

    module, store = artifact.program.modules[PLAIN_MODE], artifact.open_weights()

    class StoredWeights(Interpreter):
        """What a recipe makes comes from the store, which may have it ready."""

        def weight(self, graph: Graph, name: str, layer: int | None) -> Any:
            return store.get(resolve_recipe(name, dict(graph.recipes), layer))

    try:
        interpreter = StoredWeights(installation.ops.by_name())
        results = interpreter.run(module, module.main, [arrays[value.name] for value in module.main.params])
        # What was given, a weight, and one value under two names are not the caller's own yet.
        return tuple(np.array(result) for result in results)
    finally:
        store.close()
