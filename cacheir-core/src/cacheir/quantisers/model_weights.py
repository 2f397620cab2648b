"""The weights of an opened model by canonical key: stored ones, and those that an unpack recipe makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cacheir.ir.types import TensorType
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import Installation
from cacheir.weights.sources import WeightFiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cacheir.formats.quant_array import QuantArray


class ModelWeights:
    """``array(key)`` gives a weight as it is stored, ``dense(key)`` as f32; nothing is kept."""

    def __init__(self, model: ImportedModel, installation: Installation) -> None:
        self._model = model
        self._unpackers = installation.unpackers.by_name()
        self.files = WeightFiles(model.root, model.sources, installation.quant_formats.by_name())
        parts = {f"{key}.{part}" for key, recipe in model.recipes.items() for part in recipe.parts}
        self.keys = tuple(sorted({*model.recipes, *(key for key in model.sources if key not in parts)}))

    def array(self, key: str) -> NDArray[Any] | QuantArray:
        """An array (bf16 as uint16) or a QuantArray. MalformedModelError where the files are not as they should be."""
        recipe = self._model.recipes.get(key)
        if recipe is None:
            return self.files.array(key)
        from cacheir.reference.recipes import apply_recipe

        attrs = {**dict(recipe.attrs), "method": recipe.method}
        parts = [self.files.array(f"{key}.{part}") for part in recipe.parts]
        made = TensorType.of(recipe.dtype, *recipe.shape)
        array: NDArray[Any] = apply_recipe("unpack", attrs, parts, [], unpackers=self._unpackers, made=made)
        return array

    def dtype(self, key: str) -> str:
        """The element type or block format that ``array(key)`` has."""
        recipe = self._model.recipes.get(key)
        return self._model.sources[key].format if recipe is None else recipe.dtype

    def dense(self, key: str) -> NDArray[np.float32]:
        """The weight as f32."""
        import numpy as np

        from cacheir.formats.quant_array import QuantArray
        from cacheir.reference.bf16 import from_bf16

        array = self.array(key)
        if isinstance(array, QuantArray):
            return array.dense()
        if self.dtype(key) == "bf16":
            return from_bf16(array)
        return np.ascontiguousarray(array, np.float32)

    def close(self) -> None:
        """Close the files."""
        self.files.close()
