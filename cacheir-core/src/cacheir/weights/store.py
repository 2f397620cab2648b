"""The weights of a program: recipe text -> array, read from mapped files, shared by every session that asks."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.errors import MalformedModelError
from cacheir.ir.types import QuantType, TensorType, Type
from cacheir.ir.weights import Stored
from cacheir.plugins.compiler_records import QuantFormatSpec, UnpackerSpec
from cacheir.schedule.program import Program
from cacheir.schedule.program_weights import WeightUse, weight_uses
from cacheir.weights.content_hash import ContentHash, hash_content, recall, remember
from cacheir.weights.made_cache import MadeCache
from cacheir.weights.sources import WeightFiles, stored_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cacheir.formats.quant_array import QuantArray

    Array = NDArray[Any] | QuantArray


def open_weights(
    program: Program,
    root: Path,
    formats: Mapping[str, QuantFormatSpec],
    *,
    unpackers: Mapping[str, UnpackerSpec] | None = None,
    content: str = "",
    cache: Path | None = None,
    on_content: Callable[[str], None] | None = None,
) -> WeightStore:
    """The weights of ``program`` whose files lie under ``root``; opens no file yet.

    ``unpackers`` are what recipes may name. ``content`` is the content hash where it is known. Else it is looked for in
    ``cache``, the folder where hashes are remembered, or taken while tensors are read; ``on_content`` is called with it
    once, as soon as it is there. Raises MalformedModelError for a tensor that is missing, or whose place or type cannot
    be what the program says.
    """
    files = WeightFiles(root, program.sources, formats)
    return WeightStore(files, program, unpackers=unpackers, content=content, cache=cache, on_content=on_content)


class WeightStore:
    """Gives weights out by the text of their recipe (``ir.weights.resolve_recipe``). Safe to use from several threads.

    A stored tensor comes over the mapped file and is never copied; what a recipe makes is kept as long as somebody
    uses it, and what one that quantises makes in ``cache`` too, for the next load. Nobody may write into what they are
    given.
    """

    def __init__(
        self,
        files: WeightFiles,
        program: Program,
        *,
        unpackers: Mapping[str, UnpackerSpec] | None = None,
        content: str = "",
        cache: Path | None = None,
        on_content: Callable[[str], None] | None = None,
    ) -> None:
        self.files = files
        self._unpackers = unpackers or {}
        self._uses = weight_uses(program.modules.values())
        self._made: weakref.WeakValueDictionary[str, NDArray[Any]] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self._cache = cache
        self._on_content = on_content
        self._content: ContentHash | None = None  # None before the first read, and once the hash is known
        self._content_hash = content
        self._asked_memory = bool(content)
        self._kept: MadeCache | None = None  # opened with the first quantise recipe
        # Recipes that round, whose results are small and dear to make -> format and shape.
        self._shapes = {
            recipe: (weight.type.format, tuple(size.constant for size in weight.type.shape))
            for recipe, weight in program.weights.items()
            if recipe.startswith("quantize(") and isinstance(weight.type, QuantType)
        }
        for recipe, weight in program.weights.items():
            self._check(recipe, weight.type, weight.stored)

    def get(self, recipe: str) -> Array:
        """The weight that ``recipe`` makes: an array (bf16 as uint16), or a QuantArray over raw blocks.

        Raises MalformedModelError where a file is missing, cut short or was changed while in use.
        """
        if recipe in self.files.sources:  # the result of a recipe, stored in an artifact
            return self.files.array(recipe)
        use = self._uses[recipe]
        if isinstance(use.graph.recipes[use.name], Stored):
            return self._run(use)
        with self._lock:
            kept = self._made.get(recipe)
            if kept is not None:
                return kept
            made = self._quantised(recipe, use) if recipe in self._shapes else self._run(use)
            if not hasattr(made, "blocks"):  # a QuantArray cannot be referred to weakly
                self._made[recipe] = made
            return made

    def release(self) -> None:
        """Give the pages of the mapped files back: worth it once everything was copied out of them."""
        self.files.release()

    def content_hash(self) -> str:
        """The content hash of the model, from memory where these files are known; else everything is read."""
        self._remembered()
        if not self._content_hash:
            self._learn(hash_content(self.files))
        return self._content_hash

    def close(self) -> None:
        """Close the files; arrays that were given out stay valid."""
        self.files.close()

    def _quantised(self, recipe: str, use: WeightUse) -> Array:
        """What a quantise recipe makes, from an earlier load where that kept it."""
        if self._cache is None:
            return self._run(use)
        if self._kept is None:
            # The tensors are read for the hash alone, since the key of what is kept needs it before the first is used.
            expected = sum(stored_bytes(*place, self.files.formats) for place in self._shapes.values())
            self._kept = MadeCache(self._cache, self.content_hash(), expected_bytes=expected)
        format, shape = self._shapes[recipe]
        found = self._kept.find(recipe, self.files.formats[format], shape)
        if found is not None:
            return found
        from cacheir.formats.quant_array import QuantArray

        made = self._run(use)
        if isinstance(made, QuantArray):
            self._kept.keep(recipe, made)
        return made

    def _run(self, use: WeightUse) -> Array:
        from cacheir.reference.recipes import weight_data

        made: Array = weight_data(
            use.graph, use.name, use.layer, self._stored, formats=self.files.formats, unpackers=self._unpackers
        )
        return made

    def _stored(self, key: str) -> Array:
        array = self.files.array(key)
        if not self._remembered() and (content := self._content) is not None:
            content.add(key, self.files.raw(key).data)
            if value := content.value():
                self._learn(value)
        return array

    def _remembered(self) -> str:
        """The content hash if it is known by now; looks into the cache on the first call."""
        if not self._asked_memory:
            with self._lock:
                found = recall(self.files, self._cache) if self._cache else ""
                if found:
                    self._tell(found)
                self._content_hash = found
                self._content = None if found else ContentHash(self.files.sources)
                self._asked_memory = True
        return self._content_hash

    def _learn(self, value: str) -> None:
        with self._lock:
            if self._content_hash:
                return
            if self._cache:
                reason = remember(self.files, self._cache, value)
                if reason:
                    print(f"cacheir: the content hash is not remembered: {reason}", file=sys.stderr)
            self._tell(value)
            self._content_hash, self._content = value, None

    def _tell(self, value: str) -> None:
        """Told before it is noted: one that objects does so at every read."""
        if self._on_content:
            self._on_content(value)

    def _check(self, recipe: str, type_: Type, stored: tuple[str, ...]) -> None:
        if recipe in self.files.sources:
            return
        for key in stored:
            self.files.source(key)
        if recipe.startswith("stored "):
            source = self.files.source(stored[0])
            if not isinstance(type_, (TensorType, QuantType)):
                raise MalformedModelError(f"{source.file}: {stored[0]} cannot be a KV state")
            format_ = type_.format if isinstance(type_, QuantType) else type_.dtype
            if format_ != source.format or tuple(str(size) for size in type_.shape) != tuple(map(str, source.shape)):
                raise MalformedModelError(
                    f"{source.file}: tensor {source.tensor!r} ({stored[0]}) is {source.format}{list(source.shape)}, "
                    f"the program needs {type_}"
                )
