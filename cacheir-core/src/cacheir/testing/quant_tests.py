"""Checks that every quant format and every quantiser must pass. Subclass ``QuantTests``::

class TestQuant(QuantTests):
    plugin = "cacheir_int5"
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import ModelError
from cacheir.formats.quant_array import QuantArray
from cacheir.ir.types import KVType, QuantType, Type
from cacheir.plugins import QuantFormatSpec, QuantSpec, resolve
from cacheir.plugins.installation import Installation
from cacheir.testing.calibration_trial import CalibrationTrial
from cacheir.testing.hosts import plugin_host
from cacheir.testing.tiny_decoders import TinyDecoder, tiny_decoders

F32 = NDArray[np.float32]
_CORE = "cacheir.builtin"
_BLOCKS = 12
SLACK = 1.1  # scales and minima are rounded themselves
_ROW = 96  # elements of the rows of a format whose block is a whole row


class QuantTests:
    """What holds for the formats and the quantisers that ``plugin`` registers; other plugins' are left alone.

    ``cacheir.builtin`` is core itself.

    Override ``max_error`` for a format that rounds more than its bits say.
    """

    plugin: ClassVar[str]

    def max_error(self, format: QuantFormatSpec) -> float:
        """Largest error of a rounded element, beside the largest magnitude in its block."""
        return 2.0 ** (1 - int(format.bits_per_weight))

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run each check on each format, or on each quantiser."""
        for fixture, specs in (("quant_format", list(self.formats())), ("quantizer", list(self.quantizers()))):
            if fixture in metafunc.fixturenames:
                metafunc.parametrize(fixture, specs, ids=[spec.name for spec in specs])

    def formats(self) -> Iterator[QuantFormatSpec]:
        """The plugin's own formats."""
        for item in self._installation.quant_formats.contributions:
            if item.plugin.target == self.plugin:
                yield item.spec

    def quantizers(self) -> Iterator[QuantSpec]:
        """The plugin's own quantisers."""
        for item in self._installation.quantizers.contributions:
            if item.plugin.target == self.plugin:
                yield item.spec

    def test_there_is_something_to_test(self) -> None:
        """A misspelt hook would leave nothing."""
        assert [*self.formats(), *self.quantizers()], f"{self.plugin} registers neither a quant format nor a quantiser"

    def test_unpack_gives_what_the_record_declares(self, quant_format: QuantFormatSpec) -> None:
        """u8 [n, block_bytes] to f32 [n, block], for any bytes, for none, and for arrays that nobody may write to."""
        for count in (0, 1, _BLOCKS):
            stored = np.random.default_rng(count).integers(0, 256, (count, _stored_bytes(quant_format)), dtype=np.uint8)
            before = stored.tobytes()
            stored.flags.writeable = False
            with np.errstate(all="ignore"):
                made = resolve(quant_format.unpack)(stored)
            is_type, wanted = _described(made), f"float32[{count}, {_elements(quant_format)}]"
            assert is_type == wanted, f"{quant_format.name}: unpack gives {is_type}, the record declares {wanted}"
            assert stored.tobytes() == before, f"{quant_format.name}: unpack writes into the stored bytes"

    def test_pack_gives_what_the_record_declares(self, quant_format: QuantFormatSpec) -> None:
        """f32 [n, block] to u8 [n, block_bytes]; the values stay as they are."""
        if quant_format.pack is None:
            return
        for count in (0, 1, _BLOCKS):
            values = _normal(quant_format, count)
            before = values.tobytes()
            made = resolve(quant_format.pack)(values)
            is_type, wanted = _described(made), f"uint8[{count}, {_stored_bytes(quant_format)}]"
            assert is_type == wanted, f"{quant_format.name}: pack gives {is_type}, the record declares {wanted}"
            assert values.tobytes() == before, f"{quant_format.name}: pack writes into the values"

    def test_rounding_stays_within_its_bound(self, quant_format: QuantFormatSpec) -> None:
        """``unpack(pack(w))`` is near ``w``: normal numbers, one-sided ones, tiny and large ones."""
        if quant_format.pack is None:
            return
        normal = _normal(quant_format, _BLOCKS)
        for what, values in {
            "normal numbers": normal,
            "positive numbers": np.abs(normal),
            "numbers about 1e-3": normal * np.float32(1e-3),
            "numbers about 1e3": normal * np.float32(1e3),
        }.items():
            made = _round_trip(quant_format, values)
            largest = np.abs(values).max(axis=1, keepdims=True)
            worst = float((np.abs(made - values) / largest).max())
            bound = self.max_error(quant_format) * SLACK
            assert worst <= bound, (
                f"{quant_format.name}: {what} are off by {worst:.4f} of a block's largest, allowed {bound:.4f}"
            )

    def test_zeros_stay_zero(self, quant_format: QuantFormatSpec) -> None:
        """A block of zeros has no scale to divide by."""
        if quant_format.pack is None:
            return
        with np.errstate(all="raise"):
            made = _round_trip(quant_format, np.zeros((3, _elements(quant_format)), np.float32))
        assert not np.asarray(made).any(), f"{quant_format.name}: a block of zeros comes back as {made.flat[0]}"

    def test_an_outlier_stays(self, quant_format: QuantFormatSpec) -> None:
        """One element a thousand times the others keeps its value, and the others become small, not wild."""
        if quant_format.pack is None:
            return
        for sign in (1.0, -1.0):
            values = _normal(quant_format, _BLOCKS)
            values[:, 3 % _elements(quant_format)] = np.float32(sign * 2000.0)
            made = _round_trip(quant_format, values)
            worst = float(np.abs(made - values).max()) / 2000.0
            bound = self.max_error(quant_format) * SLACK
            assert worst <= bound, f"{quant_format.name}: beside an outlier values are off by {worst:.4f} of it"

    def test_rows_of_any_length(self, quant_format: QuantFormatSpec) -> None:
        """Rows that end inside a block are stored where the format says that they may, and refused where not."""
        if quant_format.pack is None or quant_format.block == 1:
            return
        for columns in (1, _elements(quant_format) + 5):
            values = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
            try:
                made = QuantArray.quantize(values, quant_format).dense()
            except ModelError as error:
                assert quant_format.block and not quant_format.fills_up, f"rows of {columns} elements: {error}"
                continue
            worst = float(np.abs(made - values).max() / np.abs(values).max())
            bound = self.max_error(quant_format) * SLACK
            assert worst <= bound, f"{quant_format.name}: rows of {columns} elements come back off by {worst:.4f}"

    def test_blocks_do_not_know_each_other(self, quant_format: QuantFormatSpec) -> None:
        """A block is packed alike whatever stands beside it, and alike each time."""
        if quant_format.pack is None:
            return
        values, pack = _normal(quant_format, _BLOCKS), resolve(quant_format.pack)
        together = pack(values)
        assert np.array_equal(pack(values), together), f"{quant_format.name}: packing again gives other bytes"
        alone = np.concatenate([pack(values[index : index + 1]) for index in range(len(values))])
        assert np.array_equal(alone, together), f"{quant_format.name}: a block's bytes depend on its neighbours"

    def test_numbers_that_are_not_finite_are_refused(self, quant_format: QuantFormatSpec) -> None:
        """A NaN or an infinity must not come back as some number."""
        if quant_format.pack is None:
            return
        for bad in (np.nan, np.inf, -np.inf):
            values = _normal(quant_format, 2)
            values[1, 5 % _elements(quant_format)] = bad
            try:
                with np.errstate(all="ignore"):
                    made = QuantArray.quantize(values, quant_format).dense()
            except ModelError:
                continue
            raise AssertionError(f"{quant_format.name}: {bad} is stored as {made[1, 5 % _elements(quant_format)]}")

    def test_plans_name_weights_and_formats(self, quantizer: QuantSpec) -> None:
        """A plan maps weights of the model to formats that are declared, installed and fit the weight's rows."""
        known = self._installation.quant_formats.by_name()
        missing = sorted(set(quantizer.formats) - set(known))
        assert not missing, f"{quantizer.name} declares {', '.join(missing)}, which no plugin registers"
        picked = False
        for name, decoder in tiny_decoders().items():
            plan = self._plan(quantizer, decoder)
            picked |= bool(plan)
            for key, format in plan.items():
                where = f"{quantizer.name} on the tiny decoder {name!r}: {key}"
                assert key in decoder.weights, f"{where} is no weight of the model"
                assert format in quantizer.formats, f"{where} gets {format!r}, which is not among its `formats`"
                assert known[format].pack is not None, f"{where} gets {format}, which can only be read"
                assert _fits(decoder.weights[key], known[format]), (
                    f"{where} is {decoder.weights[key]}, whose rows are no whole blocks of {known[format].block}: leave"
                    " it out"
                )
        assert picked, f"{quantizer.name} picks no weight of any tiny decoder: is it for other sizes?"

    def test_plans_are_the_same_twice(self, quantizer: QuantSpec) -> None:
        """A plan is a function of the model's types and the options, and leaves its arguments alone."""
        for decoder in tiny_decoders().values():
            before = dict(decoder.weights)
            assert self._plan(quantizer, decoder) == self._plan(quantizer, decoder), (
                f"{quantizer.name} plans otherwise at its second call"
            )
            assert dict(decoder.weights) == before, f"{quantizer.name} changes the types that it is given"

    def test_calibration_keeps_what_a_layer_computes(self, quantizer: QuantSpec) -> None:
        """Other weights, before they are rounded, must compute what the layer's own do, nearer than by rounding."""
        if quantizer.calibrate is None:
            return
        known = self._installation.quant_formats.by_name()
        for name, decoder in tiny_decoders().items():
            if any(isinstance(type_, QuantType) for type_ in decoder.weights.values()):
                continue  # what is rounded already is not calibrated
            tried = CalibrationTrial(decoder, self._installation.ops.by_name())
            plan = self._plan(quantizer, decoder)
            formats = {part: known[plan[key]] for part, key in tried.keys.items() if key in plan}
            made = resolve(quantizer.calibrate)(tried.layer, formats)
            where = f"{quantizer.name} on the tiny decoder {name!r}"
            strange = sorted(set(made) - set(tried.keys))
            assert not strange, f"{where}: calibrate gives {', '.join(strange)}, which the layer does not have"
            for part, value in made.items():
                wanted = tried.layer.weights[part].shape
                assert value.shape == wanted, f"{where}: {part} becomes {list(value.shape)}, was {list(wanted)}"
            weights = tried.layer.weights
            rounded = {part: QuantArray.quantize(weights[part], format).dense() for part, format in formats.items()}
            apart, bound = tried.change(made), tried.change(rounded)
            assert apart <= bound, (
                f"{where}: the layer's outputs move by {apart:.2g} of the largest before anything is rounded, and"
                f" rounding alone would move them by {bound:.2g}: scale what feeds a matrix by what its columns lost"
            )

    def _plan(self, quantizer: QuantSpec, decoder: TinyDecoder) -> dict[str, str]:
        options = resolve(quantizer.options)() if quantizer.options is not None else None
        plan = resolve(quantizer.plan)(decoder.spec, decoder.weights, options)
        return dict(plan)

    @cached_property
    def _installation(self) -> Installation:
        return plugin_host() if self.plugin == _CORE else plugin_host(self.plugin)


def _normal(format: QuantFormatSpec, count: int) -> F32:
    return np.random.default_rng(count).standard_normal((count, _elements(format))).astype(np.float32)


def _round_trip(format: QuantFormatSpec, values: F32) -> F32:
    made: F32 = resolve(format.unpack)(resolve(format.pack)(values))
    return made


def _described(made: Any) -> str:
    return f"{made.dtype}{list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__


def _elements(format: QuantFormatSpec) -> int:
    """The elements that the checks put into one block."""
    return format.block or _ROW


def _stored_bytes(format: QuantFormatSpec) -> int:
    return format.row_bytes(_elements(format))


def _fits(type_: Type, format: QuantFormatSpec) -> bool:
    """Whether a weight has rows, and they can be stored in the format."""
    if isinstance(type_, KVType) or len(type_.shape) < 2:
        return False
    try:
        return format.row_blocks(type_.shape[-1].evaluate({})) > 0
    except ValueError:
        return False
