"""What a text shows of a model: the rows that each matrix of each layer is multiplied with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.errors import ModelError, UsageError
from cacheir.ir.graph import Module
from cacheir.ir.weights import LAYER_MARK, Stored
from cacheir.models.decoder_graph import SizeLimits, build_logical
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.unpack_recipes import imported_weight_types
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.quantisers.model_weights import ModelWeights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

# Tokens that go through the model at once; longer texts are cut into windows of this size.
WINDOW = 512
# Rows kept of what a matrix was fed with; the mean sizes are of all rows.
SAMPLE_ROWS = 192
DEFAULT_TEXT = Path(__file__).with_name("calibration.txt")


@dataclass(frozen=True, kw_only=True)
class MatrixInput:
    """What one matrix [out, in] was fed with: the mean magnitude of each channel [in] and some rows [rows, in]."""

    mean_size: F32
    rows: F32


@dataclass(frozen=True, kw_only=True)
class CalibratedLayer:
    """One layer as a quantiser with calibration sees it.

    ``weights`` are its weights by their part of the key (``attn.q``, ``attn_norm``, ``attn.v_bias``), f32; ``inputs``
    what its matrices were fed with. ``norm_offset`` is added to the weight of every norm.
    """

    number: int
    spec: LayerSpec
    norm_offset: float
    weights: Mapping[str, F32]
    inputs: Mapping[str, MatrixInput]


def encoded(text: str, model: ImportedModel, installation: Installation) -> list[int]:
    """The ids of ``text``. UsageError where the model has no tokenizer, or the text is too short to say anything."""
    if model.tokenizer is None:
        raise UsageError("the model came without a tokenizer, so it cannot read a calibration text")
    tokenizer = resolve(installation.tokenizers[model.tokenizer.kind].load)(model.tokenizer)
    ids: list[int] = tokenizer.encode(text)
    if len(ids) < 32:
        raise UsageError(f"the calibration text has {len(ids)} tokens, and at least 32 are needed")
    return ids


def calibrated_layers(
    model: ImportedModel, weights: ModelWeights, ids: Sequence[int], installation: Installation
) -> Iterator[CalibratedLayer]:
    """Run ``ids`` through the model by the meaning of its ops, and give its layers in order.

    Raises ModelError where a layer's activations are not finite.
    """
    assert model.spec is not None
    sums = _observed(model, model.spec, weights, ids, installation)
    for number, layer in enumerate(model.spec.layers):
        prefix = f"layers.{number}."
        own = {key.removeprefix(prefix): weights.dense(key) for key in weights.keys if key.startswith(prefix)}
        inputs = {part: total.finished(f"{prefix}{part}") for (at, part), total in sums.items() if at == number}
        yield CalibratedLayer(number=number, spec=layer, norm_offset=model.spec.norm_offset, weights=own, inputs=inputs)


class _Sum:
    """Collects the rows that one matrix is fed with."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Any = 0.0
        self.rows: list[F32] = []

    def add(self, rows: F32, kept: int) -> None:
        import numpy as np

        self.count += len(rows)
        self.total = self.total + np.abs(rows).sum(axis=0, dtype=np.float64)
        self.rows.append(np.array(rows[:: max(1, len(rows) // max(1, kept))][:kept]))

    def finished(self, where: str) -> MatrixInput:
        import numpy as np

        mean = (self.total / self.count).astype(np.float32)
        if not np.isfinite(mean).all():
            raise ModelError(f"what {where} is multiplied with is not finite, so it tells nothing about rounding")
        return MatrixInput(mean_size=mean, rows=np.concatenate(self.rows))


def _observed(
    model: ImportedModel,
    spec: DecoderSpec,
    weights: ModelWeights,
    ids: Sequence[int],
    installation: Installation,
) -> dict[tuple[int, str], _Sum]:
    import numpy as np

    from cacheir.reference.interpreter import Site, interpret

    window = min(WINDOW, spec.max_positions)
    limits = SizeLimits(max_tokens=window, max_rows=1, max_seq=window)
    types = imported_weight_types(model)
    ops, families = installation.ops.by_name(), installation.families.by_name()
    module = build_logical(spec, types, ops=ops, families=families, limits=limits)
    readers = _readers(module)
    windows = [ids[start : start + window] for start in range(0, len(ids), window)]
    sums: dict[tuple[int, str], _Sum] = {}
    kept = max(1, SAMPLE_ROWS // len(windows))

    def observe(site: Site, results: tuple[Any, ...]) -> None:
        assert site.layer is not None
        for part in readers[site.graph, site.node]:
            sums.setdefault((site.layer, part), _Sum()).add(np.asarray(results[0], np.float32), kept)

    for piece in windows:
        count = len(piece)
        inputs = {
            "tokens": np.asarray(piece, np.int32),
            "positions": np.arange(count, dtype=np.int32),
            "row_starts": np.array([0, count], np.int32),
        }
        given = {value.name: inputs[value.name] for value in module.main.inputs}
        interpret(
            module,
            ops,
            weights.array,
            given,
            observe=observe,
            only=lambda site: site.layer is not None and (site.graph, site.node) in readers,
        )
    return sums


def _readers(module: Module) -> dict[tuple[str, str], list[str]]:
    """(graph, value) -> the parts of the keys of the matrices that a ``linear`` op multiplies the value with."""
    found: dict[tuple[str, str], list[str]] = {}
    for graph in module.layers:
        for op in graph.ops:
            recipe = graph.recipes.get(op.operands[1].name) if op.name == "linear" else None
            if isinstance(recipe, Stored) and recipe.key.startswith(f"layers.{LAYER_MARK}."):
                part = recipe.key.removeprefix(f"layers.{LAYER_MARK}.")
                found.setdefault((graph.name, op.operands[0].name), []).append(part)
    return found
