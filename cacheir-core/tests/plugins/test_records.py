"""Records check themselves: a wrong value is an error that names the record, the field and the value."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest

from cacheir.plugins import record, specs
from cacheir.plugins.markers import PROVISIONAL, STABLE, hook
from cacheir.plugins.ref import is_reference, resolve

RECORDS = [cls for cls in (getattr(specs, name) for name in specs.__all__) if is_dataclass(cls)]

PASS = {"name": "rest", "run": "a.b:c", "stage": specs.Stage.MODE, "summary": "Does nothing."}
KERNEL = {"name": "toy.add", "op": "add", "target": "toy", "entry": "a:b"}
BACKEND = {"name": "toy", "summary": "", "targets": ("toy",), "executor": "a:b", "probe": "a:b"}
FORMAT = {"name": "q", "summary": "", "block": 32, "block_bytes": 18, "unpack": "a:b"}
ROUTE = {"method": "GET", "path": "/x", "handler": "a:b"}
FAMILY = {
    "name": "toy",
    "summary": "",
    "architectures": ("T",),
    "gguf_architectures": (),
    "config": "a:b",
    "gguf_config": "a:b",
    "names": "a:b",
}
DONE = {
    "name": "rest",
    "plugin": "core",
    "stage": specs.Stage.MODE,
    "mode": "",
    "outcome": "changed",
    "before": "a",
    "after": "b",
    "seconds": 1,
}


@pytest.mark.parametrize(
    "cls, good, change, says",
    [
        (specs.PassSpec, PASS, {"name": "Rest"}, "lower case words"),
        (specs.PassSpec, PASS, {"name": "rest-"}, "lower case words"),
        (specs.PassSpec, PASS, {"name": "rest\n"}, "lower case words"),
        (specs.PassSpec, PASS, {"after": "dead-code"}, "after must be a tuple of strings"),
        (specs.PassSpec, PASS, {"after": ["dead-code"]}, "after must be a tuple of strings"),
        (specs.PassSpec, PASS, {"run": "a.b"}, "package.module:attribute"),
        (specs.PassSpec, PASS, {"run": 3}, "must be a function or"),
        (specs.PassSpec, PASS, {"stage": "mode"}, "stage must be a Stage"),
        (specs.PassSpec, PASS, {"stage": specs.Stage.PLAN}, "core's own steps"),
        (specs.PassSpec, PASS, {"default": 1}, "default must be True or False"),
        (specs.PassSpec, PASS, {"options": 3}, "must be a function or"),
        (specs.PassSpec, PASS, {"requires": ("rest",)}, "ordered against itself"),
        (specs.KernelSpec, KERNEL, {"rank": 1.5}, "rank must be a whole number"),
        (specs.KernelSpec, KERNEL, {"rank": True}, "rank must be a whole number"),
        (specs.KernelSpec, KERNEL, {"row_order": "sometimes"}, "fixed, varies"),
        (specs.KernelSpec, KERNEL, {"min_rows": 9, "max_rows": 8}, "no range"),
        (specs.KernelSpec, KERNEL, {"max_rows": -1}, "no range"),
        (specs.BackendSpec, BACKEND, {"targets": ()}, "names no target"),
        (specs.BackendSpec, BACKEND, {"row_classes": (8, 1)}, "must rise"),
        (specs.BackendSpec, BACKEND, {"row_classes": (0, 1)}, "must rise"),
        (specs.BackendSpec, BACKEND, {"row_classes": ("1",)}, "tuple of whole numbers"),
        (specs.BackendSpec, BACKEND, {"plan_steps": ("a.b",)}, "package.module:attribute"),
        (specs.BackendSpec, BACKEND, {"plan_steps": "a:b"}, "must be a tuple"),
        (specs.QuantFormatSpec, FORMAT, {"block": -1}, "is none"),
        (specs.QuantFormatSpec, FORMAT, {"block_bytes": -18}, "is none"),
        (specs.ExporterSpec, {"name": "x", "summary": "", "run": "a:b", "suffix": ".x"}, {"suffix": "x"}, "begin with"),
        (
            specs.ImporterSpec,
            {"name": "x", "summary": "", "run": "a:b", "suffixes": (".x",)},
            {"suffixes": ()},
            "never",
        ),
        (
            specs.ImporterSpec,
            {"name": "x", "summary": "", "run": "a:b", "suffixes": (".x",)},
            {"suffixes": ("x",)},
            "'.'",
        ),
        (specs.FamilySpec, FAMILY, {"architectures": ()}, "no architecture"),
        (specs.RouteSpec, ROUTE, {"method": "get"}, "method must be one of"),
        (specs.RouteSpec, ROUTE, {"path": "x"}, "must begin with '/'"),
        (specs.RouteSpec, ROUTE, {"handler": print}, "package.module:attribute"),
        (specs.CommandSpec, {"name": "x", "help": "", "app": "a:b"}, {"app": print}, "package.module:attribute"),
        (specs.CheckResult, {"ok": True, "detail": "fine"}, {"ok": None}, "ok must be True or False"),
        (specs.CheckResult, {"ok": True, "idle": True, "detail": "absent"}, {"ok": False}, "idle is for"),
        (specs.PassRecord, DONE, {"outcome": "broken"}, "outcome must be one of"),
        (specs.PassRecord, DONE, {"seconds": "1"}, "seconds must be a number"),
    ],
)
def test_a_wrong_value_is_named(cls: Any, good: dict[str, Any], change: dict[str, Any], says: str) -> None:
    cls(**good)
    with pytest.raises(ValueError, match=says) as caught:
        cls(**{**good, **change})
    assert str(good.get("name", "")) in str(caught.value) or "name" in change


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_every_field_is_checked(cls: Any) -> None:
    """An annotation that ``check_fields`` does not know would be let through silently."""
    unchecked = {"Mapping[str, int]", "KernelSpec"}  # records that core writes itself
    for item in fields(cls):
        annotation = item.type.removesuffix(" | None")
        known = annotation in record._CHECKS or annotation.startswith(("Lazy[", "tuple[Lazy["))
        assert known or annotation in unchecked, f"{cls.__name__}.{item.name}: {annotation}"


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_every_record_has_a_level_and_a_docstring(cls: Any) -> None:
    assert cls.record_level in (STABLE, PROVISIONAL)
    assert cls.__doc__ and not cls.__doc__.startswith(cls.__name__ + "(")


def test_a_record_cannot_be_changed_or_made_by_position() -> None:
    made = specs.PassSpec(**PASS)
    with pytest.raises(FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        specs.PassSpec("rest", "a:b", specs.Stage.MODE, "")  # type: ignore[misc]


def test_a_hook_needs_a_level() -> None:
    with pytest.raises(ValueError, match="must be 'stable' or 'provisional'"):
        hook(level="experimental")


@pytest.mark.parametrize("text", ["a:b", "a.b.c:d.e", "_a1:_b2"])
def test_references(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize("text", ["", "a", "a:", ":b", "a b:c", "a:b:c", "1a:b", "a..b:c", "a:b\n", ".a:b"])
def test_what_is_no_reference(text: str) -> None:
    assert not is_reference(text)


def test_resolve_gives_what_is_named() -> None:
    import os.path

    assert resolve("os.path:join") is os.path.join
    assert resolve("cacheir.plugins.specs:Stage.MODE") is specs.Stage.MODE
    assert resolve(print) is print
