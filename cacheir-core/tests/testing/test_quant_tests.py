"""``QuantTests``: a good format and a good quantiser pass every check, and each check catches its own culprit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cacheir.testing import QuantTests

_COUNTER = itertools.count()


@pytest.fixture
def check(scaffolded: Any, plugin_of: Any, complaints: Any) -> Callable[..., dict[str, str]]:
    """``check("quant-format", unpack=..., pack=...)``: the complaints about a changed record of the template."""

    def run(kind: str, **fields: Any) -> dict[str, str]:
        module = scaffolded(kind)
        hook = "cacheir_register_quant_formats" if kind == "quant-format" else "cacheir_register_quantizers"
        (spec,) = getattr(module, hook)()
        made = {name: field(module) if callable(field) else field for name, field in fields.items()}
        plugin_name = plugin_of(**{hook: [replace(spec, **made)]})

        class Checks(QuantTests):
            plugin = plugin_name

        return complaints(Checks())  # type: ignore[no-any-return]

    return run


def test_good_ones_pass(check: Any) -> None:
    assert check("quant-format") == {}
    assert check("quantizer") == {}


def test_a_format_that_can_only_be_read_passes(check: Any) -> None:
    assert check("quant-format", pack=None) == {}


def test_a_plugin_without_either_is_named(plugin_of: Any, complaints: Any) -> None:
    class Checks(QuantTests):
        plugin = plugin_of(cacheir_register_quant_formats=[])

    assert set(complaints(Checks())) == {"test_there_is_something_to_test"}


def wide(module: Any) -> Any:
    return lambda blocks: module.unpack(blocks).astype(np.float64)


def writes(module: Any) -> Any:
    def unpack(blocks: Any) -> Any:
        made = module.unpack(blocks)
        blocks.flags.writeable = True
        blocks[...] = 0
        return made

    return unpack


def short(module: Any) -> Any:
    return lambda values: module.pack(values)[:, :-1]


def scribbles(module: Any) -> Any:
    def pack(values: Any) -> Any:
        made = module.pack(values)
        values[...] = 0
        return made

    return pack


def coarse(module: Any) -> Any:
    """Rounds to 6 bits, and keeps one element that is far above the others."""

    def pack(values: Any) -> Any:
        stored = module.pack(values)
        stored[:, 4:] = (stored[:, 4:].view(np.int8) // 4 * 4).view(np.uint8)
        lone = np.sort(np.abs(values), axis=1)[:, -2] < 0.1 * np.abs(values).max(axis=1)
        return np.where(lone[:, None], module.pack(values), stored)

    return pack


def divides_by_zero(module: Any) -> Any:
    def pack(values: Any) -> Any:
        np.abs(values).max(axis=1, initial=0.0) / np.abs(values).max(axis=1, initial=0.0)
        return module.pack(values)

    return pack


def clips_outliers(module: Any) -> Any:
    def pack(values: Any) -> Any:
        if not np.isfinite(values).all():
            return module.pack(values)
        middle = np.median(np.abs(values), axis=1, keepdims=True)
        return module.pack(np.clip(values, -100 * middle - 1e-30, 100 * middle + 1e-30))

    return pack


def knows_neighbours(module: Any) -> Any:
    """One scale's rounding depends on the block before."""

    def pack(values: Any) -> Any:
        stored = module.pack(values)
        if len(stored) > 1 and np.isfinite(values).all():
            stored[1:, 0] ^= 1  # the least bit of a scale
        return stored

    return pack


def takes_chance(module: Any) -> Any:
    def pack(values: Any) -> Any:
        stored = module.pack(values)
        if len(stored):
            stored[0, 0] ^= next(_COUNTER) & 1
        return stored

    return pack


def swallows_nan(module: Any) -> Any:
    return lambda values: module.pack(np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=-1.0))


@pytest.mark.parametrize(
    ("fields", "failing", "words"),
    [
        ({"unpack": wide}, "test_unpack_gives_what_the_record_declares", "gives float64"),
        ({"unpack": writes}, "test_unpack_gives_what_the_record_declares", "writes into the stored bytes|cannot set"),
        ({"pack": short}, "test_pack_gives_what_the_record_declares", "the record declares"),
        ({"pack": scribbles}, "test_pack_gives_what_the_record_declares", "writes into the values"),
        ({"pack": coarse}, "test_rounding_stays_within_its_bound", "of a block's largest"),
        ({"pack": divides_by_zero}, "test_zeros_stay_zero", "invalid value"),
        ({"pack": clips_outliers}, "test_an_outlier_stays", "beside an outlier"),
        ({"pack": knows_neighbours}, "test_blocks_do_not_know_each_other", "depend on its neighbours"),
        ({"pack": takes_chance}, "test_blocks_do_not_know_each_other", "gives other bytes"),
        ({"pack": swallows_nan}, "test_numbers_that_are_not_finite_are_refused", "nan is stored as"),
    ],
    ids=lambda part: next(iter(part.values())).__name__ if isinstance(part, dict) else None,
)
def test_each_check_of_formats_catches_its_culprit(check: Any, fields: Any, failing: str, words: str) -> None:
    found = check("quant-format", **fields)
    assert failing in found
    assert any(part in found[failing] for part in words.split("|")), found
    # A pack whose blocks have another size cannot be unpacked, and one that destroys its operand rounds nothing.
    unusable = short in fields.values() or scribbles in fields.values()
    assert unusable or set(found) == {failing}, found


def in_fours(module: Any) -> Any:
    """Packs rows as a loop of four elements at a time would that forgets the rest."""

    def pack(values: Any) -> Any:
        whole = values.copy()
        whole[:, values.shape[1] // 4 * 4 :] = 0
        return module.pack(whole)

    return pack


def test_a_format_of_whole_rows(check: Any) -> None:
    assert check("quant-format", block=0, block_bytes=4) == {}
    found = check("quant-format", block=0, block_bytes=4, pack=in_fours)
    assert set(found) == {"test_rows_of_any_length"}
    assert "come back off by" in found["test_rows_of_any_length"]


def unknown_key(module: Any) -> Any:
    return lambda spec, types, options: {**module.plan(spec, types, options), "layers.99.attn.q": "q8_0"}


def undeclared(module: Any) -> Any:
    return lambda spec, types, options: dict.fromkeys(module.plan(spec, types, options), "q4_0")


def norms_too(module: Any) -> Any:
    return lambda spec, types, options: {**module.plan(spec, types, options), "layers.0.attn_norm": "q8_0"}


def nothing(module: Any) -> Any:
    return lambda spec, types, options: {}


def changes_types(module: Any) -> Any:
    def plan(spec: Any, types: Any, options: Any) -> Any:
        made = module.plan(spec, types, options)
        types["extra"] = next(iter(types.values()))
        return made

    return plan


def alternates(module: Any) -> Any:
    def plan(spec: Any, types: Any, options: Any) -> Any:
        made = module.plan(spec, types, options)
        return made if next(_COUNTER) % 2 else dict(list(made.items())[1:])

    return plan


@pytest.mark.parametrize(
    ("plan", "failing", "words"),
    [
        (unknown_key, "test_plans_name_weights_and_formats", "is no weight of the model"),
        (undeclared, "test_plans_name_weights_and_formats", "not among its `formats`"),
        (norms_too, "test_plans_name_weights_and_formats", "no whole blocks"),
        (nothing, "test_plans_name_weights_and_formats", "picks no weight"),
        (changes_types, "test_plans_are_the_same_twice", "changes the types"),
        (alternates, "test_plans_are_the_same_twice", "plans otherwise"),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_each_check_of_quantisers_catches_its_culprit(check: Any, plan: Any, failing: str, words: str) -> None:
    found = check("quantizer", plan=plan)
    assert set(found) == {failing}
    assert words in found[failing]


def forgets_the_norm(module: Any) -> Any:
    """Scales the columns of a matrix, and not what it is fed with."""
    return lambda layer, formats: {"attn.q": layer.weights["attn.q"] * np.float32(2)}


def gives_another_shape(module: Any) -> Any:
    return lambda layer, formats: {"attn.q": layer.weights["attn.q"].T[:3]}


def gives_another_part(module: Any) -> Any:
    return lambda layer, formats: {"attn.x": layer.weights["attn.q"]}


def scales_both(module: Any) -> Any:
    """What feeds the matrices is divided by what their columns are multiplied with."""

    def calibrate(layer: Any, formats: Any) -> Any:
        by = np.float32(4)
        parts = ("attn.q", "attn.k", "attn.v")
        norm = (layer.weights["attn_norm"] + layer.norm_offset) / by - layer.norm_offset
        return {"attn_norm": norm, **{part: layer.weights[part] * by for part in parts}}

    return calibrate


@pytest.mark.parametrize(
    ("calibrate", "words"),
    [
        (forgets_the_norm, "before anything is rounded"),
        (gives_another_shape, "becomes"),
        (gives_another_part, "attn.x, which the layer does not have"),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_a_wrong_calibration_is_seen(check: Any, calibrate: Any, words: str) -> None:
    assert check("quantizer", calibrate=scales_both) == {}
    found = check("quantizer", calibrate=calibrate)
    assert set(found) == {"test_calibration_keeps_what_a_layer_computes"}
    assert words in found["test_calibration_keeps_what_a_layer_computes"]


def test_a_format_that_nobody_registers_is_named(check: Any) -> None:
    found = check("quantizer", formats=("q8_0", "q9_9"))
    assert set(found) == {"test_plans_name_weights_and_formats"}
    assert "q9_9, which no plugin registers" in found["test_plans_name_weights_and_formats"]
