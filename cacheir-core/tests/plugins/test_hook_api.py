"""The snapshot: a change of any hook's arguments or record's fields without a new HOOK_API fails here.

To change the API on purpose: raise ``HOOK_API`` in markers.py (docs/hooks.md says when minor and when major), then
``python cacheir-core/tests/plugins/test_hook_api.py`` writes the new version's snapshot beside the old ones. Before a
version is released (CHANGELOG.md) no plugin can depend on it, and ``--again`` writes its snapshot anew.
"""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from cacheir.ir import AttrDef, OpDef, Operand
from cacheir.plugins import specs
from cacheir.plugins.check_module import hook_specs
from cacheir.plugins.markers import HOOK_API, PROVISIONAL, STABLE

FOLDER = Path(__file__).parent / "hook_api"


def current() -> dict[str, Any]:
    """Every hook with its arguments and level, every record with its fields, which are required, and its level."""
    records = [getattr(specs, name) for name in specs.__all__]
    described = {cls.__name__: _record(cls) for cls in (*records, OpDef, Operand, AttrDef) if is_dataclass(cls)}
    return {
        "hook_api": list(HOOK_API),
        "stages": [stage.value for stage in specs.Stage],
        "hooks": {
            name: {
                "arguments": list(function.__code__.co_varnames[: function.__code__.co_argcount]),
                "level": function.cacheir_level,  # type: ignore[attr-defined]
                "since": list(function.cacheir_since),  # type: ignore[attr-defined]
            }
            for name, function in hook_specs().items()
        },
        "records": described,
    }


def _record(cls: Any) -> dict[str, Any]:
    names = {
        item.name: "required" if item.default is MISSING and item.default_factory is MISSING else "optional"
        for item in fields(cls)
    }
    return {"level": getattr(cls, "record_level", STABLE), "fields": names}


def snapshot_file(version: tuple[int, int]) -> Path:
    return FOLDER / f"{version[0]}.{version[1]}.json"


def snapshot(version: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(snapshot_file(version).read_text(encoding="utf-8"))
    return found


def test_nothing_changed_without_a_new_hook_api() -> None:
    kept, now = snapshot(HOOK_API), current()
    changed = [
        f"{name}: {kept[part].get(name)} -> {now[part].get(name)}"
        for part in ("hooks", "records")
        for name in sorted({*kept[part], *now[part]})
        if kept[part].get(name) != now[part].get(name)
    ]
    assert not changed, "raise HOOK_API and write a snapshot (see this file's first lines):\n" + "\n".join(changed)
    assert now == kept


def test_a_minor_version_takes_nothing_stable_away() -> None:
    """Against every snapshot of the same major number: what was stable keeps its arguments and fields."""
    now = current()
    for path in FOLDER.glob(f"{HOOK_API[0]}.*.json"):
        old = json.loads(path.read_text(encoding="utf-8"))
        assert old["hook_api"] <= now["hook_api"], f"{path.name} is of a later version than HOOK_API"
        for name, hook in old["hooks"].items():
            if hook["level"] == STABLE:
                assert now["hooks"][name]["level"] == STABLE
                assert set(hook["arguments"]) <= set(now["hooks"][name]["arguments"]), name
        for name, described in old["records"].items():
            if described["level"] == STABLE:
                held = now["records"][name]["fields"]
                assert set(described["fields"]) <= set(held), name
                for field, need in held.items():
                    assert need == "optional" or described["fields"].get(field) == "required", f"{name}.{field}"


def test_levels_are_as_designed() -> None:
    now = current()
    provisional = {name for name, hook in now["hooks"].items() if hook["level"] == PROVISIONAL}
    for kind in ("backends", "policies", "logits_processors", "grammars", "routes"):
        assert f"cacheir_register_{kind}" in provisional
    for kind in ("passes", "ops", "importers", "exporters", "quant_formats", "quantizers", "commands"):
        assert f"cacheir_register_{kind}" not in provisional
    for kind in ("samplers", "tokenizers", "families", "models"):
        assert f"cacheir_register_{kind}" not in provisional
    assert "cacheir_plugin_info" not in provisional


if __name__ == "__main__":
    if snapshot_file(HOOK_API).exists() and "--again" not in sys.argv:
        sys.exit(f"{snapshot_file(HOOK_API).name} is there already: raise HOOK_API first")
    FOLDER.mkdir(exist_ok=True)
    snapshot_file(HOOK_API).write_text(json.dumps(current(), indent=1) + "\n", encoding="utf-8")
