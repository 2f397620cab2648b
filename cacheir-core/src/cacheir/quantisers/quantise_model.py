"""Quantises a model into a checkpoint by its plan, after a text has told what matrices are fed with, where asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir import __version__, settings
from cacheir.artifact.cache import CHECKPOINTS
from cacheir.artifact.seal import digest
from cacheir.errors import ModelError, PluginError, UsageError
from cacheir.models.find_model import ModelSource, find_importer, open_model
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.unpack_recipes import imported_weight_types
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import QuantFormatSpec
from cacheir.quantisers.calibration import DEFAULT_TEXT, calibrated_layers, encoded
from cacheir.quantisers.checkpoint import check_place, text_hash, write_checkpoint
from cacheir.quantisers.choose import QuantPlan, quant_plan
from cacheir.quantisers.model_weights import ModelWeights
from cacheir.weights.content_hash import hash_content, recall, remember
from cacheir.weights.safetensors_file import TensorEntry, chunks_of_array
from cacheir.weights.sources import stored_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cacheir.formats.quant_array import QuantArray

Progress = Callable[[str], None]
# More weights that became 0 than this are worth a word: of a row with an outlier little else is left.
ZEROED_LIMIT = 0.25


@dataclass(frozen=True, kw_only=True)
class WeightReport:
    """One weight: its format before and after, bytes after, the error relative to its size (root mean square, None for
    a weight whose channels were scaled), and the fraction of its elements that were not 0 and became 0.
    """

    key: str
    before: str
    after: str
    nbytes: int
    error: float | None
    zeroed: float

    @property
    def warning(self) -> str:
        """A sentence where too much became 0, "" else."""
        if self.zeroed <= ZEROED_LIMIT:
            return ""
        return f"{self.key}: {self.zeroed:.0%} of its weights became 0 in {self.after}; smaller groups confine outliers"


def quantise_model(
    path: Path,
    quant: str,
    output: Path,
    *,
    installation: Installation,
    calibration: str | None = None,
    progress: Progress = lambda text: None,
) -> list[WeightReport]:
    """Write the checkpoint ``output`` of the model at ``path`` with its weights as ``quant`` plans them.

    ``calibration`` is a text for quantisers that need one, None for the one that core brings. Raises UsageError for a
    plan that cannot be, ModelError for a weight that cannot be rounded, by its key.
    """
    check_place(output)
    model = _opened(path, installation)
    assert model.spec is not None
    plan = quant_plan(quant, model.spec, imported_weight_types(model), installation)
    formats = installation.quant_formats.by_name()
    weights = ModelWeights(model, installation)
    changed: dict[str, Any] = {}
    notes = []
    if plan.calibrated:
        text = DEFAULT_TEXT.read_text(encoding="utf-8") if calibration is None else calibration
        changed = _calibrated(model, plan, weights, text, installation, progress)
        notes.append(f"calibrated with a text of {len(text)} characters, SHA-256 {text_hash(text)[:16]}")
    made = _Maker(weights, plan, formats, changed)
    progress(f"writing {output}")
    entries = [made.entry(key, formats) for key in weights.keys]
    write_checkpoint(output, model, quant, entries, lambda entry: chunks_of_array(made.array(entry.name)), notes)
    weights.close()
    return [made.reports[key] for key in weights.keys if key in made.reports]


def cached_checkpoint(path: Path, quant: str, installation: Installation, progress: Progress) -> Path:
    """The checkpoint of this model and quantiser with core's own calibration text, from the cache or made now."""
    model = _opened(path, installation)
    cache = settings.cache_dir()
    weights = ModelWeights(model, installation)
    content = recall(weights.files, cache) or hash_content(weights.files)
    remember(weights.files, cache, content)
    weights.close()
    parts = [__version__, model.header_hash, content, quant, text_hash(DEFAULT_TEXT.read_text(encoding="utf-8"))]
    folder = cache / CHECKPOINTS / digest(json.dumps(parts).encode("utf-8"))[:32]
    if not folder.is_dir():
        progress(f"quantising {path.name} with {quant}; kept for the next time")
        quantise_model(path, quant, folder, installation=installation, progress=progress)
    return folder


class _Maker:
    """Makes each weight of the checkpoint when its bytes are written, and reports what rounding did."""

    def __init__(
        self,
        weights: ModelWeights,
        plan: QuantPlan,
        formats: Mapping[str, QuantFormatSpec],
        changed: Mapping[str, Any],
    ) -> None:
        self._weights = weights
        self._plan = plan
        self._formats = formats
        self._changed = changed
        self.reports: dict[str, WeightReport] = {}

    def entry(self, key: str, formats: Mapping[str, QuantFormatSpec]) -> TensorEntry:
        """What the file's table says about the weight."""
        array = self._changed.get(key)
        shape = tuple(self._weights.array(key).shape) if array is None else tuple(array.shape)
        before = "f32" if array is not None and key not in self._plan.formats else self._weights.dtype(key)
        format = self._plan.formats.get(key, before)
        return TensorEntry(name=key, format=format, shape=shape, nbytes=stored_bytes(format, shape, formats))

    def array(self, key: str) -> NDArray[Any] | QuantArray:
        """The weight as it is stored."""
        from cacheir.formats.quant_array import QuantArray

        format = self._plan.formats.get(key)
        changed = self._changed.get(key)
        if format is None:
            return self._weights.array(key) if changed is None else changed
        before = self._weights.dtype(key)
        if changed is None and before == format:
            return self._weights.array(key)
        if isinstance(changed, QuantArray):
            stored = changed
        else:
            stored = _rounded(key, self._weights.dense(key), self._formats[format])
        self.reports[key] = _report(key, self._weights, stored, before, is_scaled=changed is not None)
        return stored


def _calibrated(
    model: ImportedModel,
    plan: QuantPlan,
    weights: ModelWeights,
    text: str,
    installation: Installation,
    progress: Progress,
) -> dict[str, Any]:
    """The weights that quantisers with calibration changed: quantised where the plan says so, else f32."""
    import numpy as np

    assert model.spec is not None
    formats = installation.quant_formats.by_name()
    family = installation.families.by_name().get(model.spec.family)
    if family is not None and family.block is not None:
        raise UsageError(
            f"{', '.join(plan.calibrated)} knows the standard block alone, and {model.spec.family} has its own",
            hint="a quantiser without calibration, as int4, takes any decoder",
        )
    ids = encoded(text, model, installation)
    progress(f"running {len(ids)} tokens of the calibration text")
    changed: dict[str, Any] = {}
    for layer in calibrated_layers(model, weights, ids, installation):
        prefix = f"layers.{layer.number}."
        progress(f"scaling layer {layer.number + 1} of {len(model.spec.layers)}")
        for name, keys in plan.calibrated.items():
            own = {
                key.removeprefix(prefix): formats[plan.formats[key]]
                for key in keys
                if key.startswith(prefix) and len(weights.array(key).shape) == 2
            }
            made = resolve(installation.quantizers[name].calibrate)(layer, own) if own else {}
            for part, array in made.items():
                if part not in layer.weights or array.shape != layer.weights[part].shape:
                    raise PluginError(f"quantiser {name!r} gave {prefix}{part}, which is no weight of this layer")
                values = np.ascontiguousarray(array, np.float32)
                key = f"{prefix}{part}"
                changed[key] = _rounded(key, values, own[part]) if part in own else values
    return changed


def _rounded(key: str, values: NDArray[Any], format: QuantFormatSpec) -> QuantArray:
    from cacheir.formats.quant_array import QuantArray

    try:
        return QuantArray.quantize(values, format)
    except ModelError as error:
        raise ModelError(f"{key}: {error}", hint="keep this weight as it is by a rule of a recipe file") from error


def _report(key: str, weights: ModelWeights, stored: QuantArray, before: str, *, is_scaled: bool) -> WeightReport:
    import numpy as np

    wanted, found = weights.dense(key), stored.dense()
    size = float(np.square(wanted, dtype=np.float64).mean()) or 1.0
    # A weight whose channels were scaled can be compared by the model's answers alone.
    error = None if is_scaled else (float(np.square(found - wanted, dtype=np.float64).mean()) / size) ** 0.5
    nonzero = int(np.count_nonzero(wanted))
    zeroed = int(np.count_nonzero((wanted != 0) & (found == 0))) / max(1, nonzero)
    return WeightReport(
        key=key, before=before, after=stored.format.name, nbytes=stored.nbytes, error=error, zeroed=zeroed
    )


def _opened(path: Path, installation: Installation) -> ImportedModel:
    model = open_model(ModelSource(path, find_importer(path, installation), path.name), installation)
    if model.spec is None:
        raise UsageError(f"{path} is a plain graph, and only decoders are quantised into checkpoints")
    return model
