"""Attribution: a baseline with the weights of one module taken from another model, a module at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacheir.artifact.artifact import Artifact
from cacheir.errors import UsageError
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.quality.answers import answers
from cacheir.quality.compare import Comparison, compare
from cacheir.quality.pairing import by_keys, dense
from cacheir.quality.protocol import Protocol
from cacheir.runtime.executor import ExecutorOptions
from cacheir.runtime.open_model import open_model
from cacheir.weights.store import WeightStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

# The backend that takes any array for a weight, whatever format the program says.
BACKEND = "cpu"


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """What the baseline answers once the weights of ``module`` are the other model's."""

    module: str
    comparison: Comparison


def attribute(
    baseline: Artifact,
    other: Artifact,
    reference: list[F32],
    protocol: Protocol,
    installation: Installation,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Attribution]:
    """One result for each module whose weights differ.

    A module is the attention or the feed-forward part of a layer with its norm, the embedding, the head or the last
    norm: parts that can be swapped alone although a quantiser moved factors between their weights. ``reference`` are
    the baseline's answers. Raises UsageError where the models do not have the same weights.
    """
    store, others = baseline.open_weights(), other.open_weights()
    ours, theirs = by_keys(baseline.program), by_keys(other.program)
    if set(ours) != set(theirs):
        odd = sorted(set(ours) ^ set(theirs))[0]
        raise UsageError(
            f"only one of the models has a weight made of {', '.join(odd)}",
            hint="attribution takes two forms of one model, compiled without passes that join weights",
        )
    modules: dict[str, list[tuple[str, ...]]] = {}
    for keys in ours:
        modules.setdefault(module_of(keys[0]), []).append(keys)
    for module, members in sorted(modules.items(), key=lambda item: _order(item[0])):
        swaps = {ours[keys]: dense(others.get(theirs[keys])) for keys in members}
        if all(_equal(dense(store.get(recipe)), array) for recipe, array in swaps.items()):
            continue
        progress(f"swapping {module}")
        found = compare(reference, _swapped_answers(baseline, store, swaps, protocol, installation), protocol)
        yield Attribution(module=module, comparison=found)
    store.close()
    others.close()


def module_of(key: str) -> str:
    """``layers.3.attn`` for the weights of a layer's attention, ``layers.3.ffn``, ``embed``, ``norm`` or ``head``."""
    head, _, rest = key.partition(".")
    number, _, part = rest.partition(".")
    if head != "layers":
        return "head" if head.startswith("head") else key
    return f"layers.{number}.{'attn' if part.startswith('attn') else 'ffn'}"


class _SwappedWeights:
    """A weight store in which some recipes give other arrays; what an executor asks a store for."""

    def __init__(self, store: WeightStore, swaps: Mapping[str, Any]) -> None:
        self._store = store
        self._swaps = swaps

    def get(self, recipe: str) -> Any:
        swapped = self._swaps.get(recipe)
        return self._store.get(recipe) if swapped is None else swapped

    def release(self) -> None:
        self._store.release()


def _swapped_answers(
    baseline: Artifact,
    store: WeightStore,
    swaps: Mapping[str, Any],
    protocol: Protocol,
    installation: Installation,
) -> Iterator[F32]:
    executor = resolve(installation.backends[BACKEND].executor)(ExecutorOptions())
    try:
        executor.load(baseline.program, _SwappedWeights(store, swaps))
        yield from answers(open_model(baseline.program, executor), protocol)
    finally:
        executor.close()


def _equal(one: F32, two: F32) -> bool:
    import numpy as np

    if one.shape != two.shape:
        raise UsageError(f"the models have weights of the shapes {list(one.shape)} and {list(two.shape)} in one place")
    return bool(np.array_equal(one, two))


def _order(module: str) -> tuple[int, int, str]:
    """The embedding, the layers by number, then the rest."""
    head, _, rest = module.partition(".")
    number = rest.partition(".")[0]
    return (1, int(number), rest) if head == "layers" else (0 if head == "embed" else 2, 0, module)
