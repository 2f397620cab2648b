"""What an artifact may not talk us into: every file is changed, with its hashes made to fit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.artifact import layout
from cacheir.artifact.read import read_artifact
from cacheir.artifact.seal import digest, open_sealed, sealed_bytes
from cacheir.artifact.verify import verify_artifact
from cacheir.compile import compile_model
from cacheir.errors import (
    ArtifactDamagedError,
    ArtifactError,
    ArtifactVersionError,
    BackendUnavailable,
    CacheIRError,
    MissingKernelError,
)
from cacheir.plugins.installation import Installation
from cacheir.schedule.check_plan import plan_problems
from cacheir.schedule.record_json import json_bytes

Make = Callable[..., Installation]


@pytest.fixture
def artifact(model: Path, installation: Installation, tmp_path: Path, cache: Path) -> Path:
    (model.parent / "tiny.words").write_text("a b")
    return compile_model(model, "fake", output=tmp_path / "out", installation=installation).path


def rewrite(artifact: Path, name: str, data: bytes) -> None:
    """Put ``data`` into the file ``name`` and make the card fit, as an attacker would."""
    (artifact / name).parent.mkdir(parents=True, exist_ok=True)
    (artifact / name).write_bytes(data)
    card = open_sealed((artifact / layout.CARD).read_bytes(), "card")
    card["files"][name] = {"nbytes": len(data), "sha256": digest(data)}
    (artifact / layout.CARD).write_bytes(sealed_bytes(card))


def change_json(artifact: Path, name: str, change: Callable[[Any], None]) -> None:
    value = json.loads((artifact / name).read_bytes())
    change(value)
    rewrite(artifact, name, json_bytes(value))


def change_card(artifact: Path, **fields: Any) -> None:
    card = open_sealed((artifact / layout.CARD).read_bytes(), "card")
    (artifact / layout.CARD).write_bytes(sealed_bytes({**card, **fields}))


def files_of(artifact: Path) -> list[str]:
    return sorted(file.relative_to(artifact).as_posix() for file in artifact.rglob("*") if file.is_file())


def test_a_whole_artifact_has_no_findings(artifact: Path, installation: Installation) -> None:
    found = verify_artifact(artifact, installation)
    assert found.findings == ()
    assert found.files == len(files_of(artifact))
    assert len(found.content) == 64


def test_one_flipped_byte_anywhere_is_named(artifact: Path, installation: Installation, tmp_path: Path) -> None:
    """Every file, at its first and last byte and a few between."""
    for name in files_of(artifact):
        content = (artifact / name).read_bytes()
        for place in sorted({0, len(content) - 1, *range(0, len(content), max(1, len(content) // 5))}):
            spoilt = bytearray(content)
            spoilt[place] ^= 0x20
            (artifact / name).write_bytes(spoilt)
            if name == layout.CARD:
                with pytest.raises(ArtifactError, match=r"artifact\.json|format"):
                    verify_artifact(artifact, installation)
            else:
                found = verify_artifact(artifact, installation, read_weights=False).findings
                assert [finding.file for finding in found] == [name], place
        (artifact / name).write_bytes(content)
    assert verify_artifact(artifact, installation).findings == ()


def test_one_changed_tensor_is_named_once_the_content_is_known(
    artifact: Path, installation: Installation, model: Path
) -> None:
    read_artifact(artifact, installation).open_weights().content_hash()
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    (finding,) = verify_artifact(artifact, installation).findings
    assert "tensors are not those" in finding.fault
    weights = read_artifact(artifact, installation).open_weights()
    with pytest.raises(ArtifactDamagedError, match="not those that the artifact was used with before"):
        for key in weights.files.sources:
            weights.get(f'stored "{key}"')
    assert verify_artifact(artifact, installation, read_weights=False).findings == ()


def test_missing_and_strange_files_are_named(artifact: Path, installation: Installation) -> None:
    (artifact / "plans" / "decode.json").unlink()
    (artifact / "graphs" / "other.cir").write_text("graph")
    found = verify_artifact(artifact, installation).findings
    assert {(finding.file, finding.fault) for finding in found} == {
        ("plans/decode.json", "is missing"),
        ("graphs/other.cir", "does not belong to the artifact"),
    }
    with pytest.raises(ArtifactDamagedError, match=r"plans/decode\.json is missing"):
        read_artifact(artifact, installation)


def test_another_format_is_named(artifact: Path, installation: Installation) -> None:
    change_card(artifact, format=3)
    with pytest.raises(ArtifactVersionError, match="written in format 3; this core reads 1 to 1"):
        read_artifact(artifact, installation)


def test_what_is_no_artifact_says_so(tmp_path: Path, installation: Installation) -> None:
    with pytest.raises(ArtifactError, match=r"is no artifact: it has no artifact\.json"):
        read_artifact(tmp_path, installation)


def spoil_arena(plan: Any) -> None:
    frame = next(frame for frame in plan["frames"] if len(frame["places"]) > 1)
    for place in frame["places"].values():
        place["offset"] = 0


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("plans/decode.json", spoil_arena, "share bytes while both are in use"),
        ("plans/decode.json", lambda v: v.update(arena_bytes=64), "the arena of 64 bytes does not hold"),
        ("plans/decode.json", lambda v: v["frames"].pop(), "frames are not those"),
        ("plans/decode.json", lambda v: v.update(alignment=0), "is no power of two"),
        ("schedules/decode.json", lambda v: v["graphs"][0]["entries"].pop(), "entries"),
        ("schedules/decode.json", lambda v: v.update(row_classes=[8, 1, 0]), "row_classes must rise"),
        ("schedules/decode.json", lambda v: v.update(mode="prefill"), "the mode is"),
        ("schedules/decode.json", lambda v: v["graphs"][0]["entries"][0].update(op=-1), "is for"),
        ("schedules/decode.json", lambda v: v.pop("kernels"), "lacks the field 'kernels'"),
        ("weights/manifest.json", lambda v: v["tensors"].popitem(), "has no tensor|not the one"),
        ("weights/manifest.json", lambda v: v["tensors"]["norm"].update(file="../../x"), "outside the model's folder"),
        ("weights/manifest.json", lambda v: v["tensors"]["norm"].update(offset=-4), "negative offset"),
        ("weights/manifest.json", lambda v: v["tensors"]["norm"].update(offset=1 << 50), "ends at byte"),
        ("weights/manifest.json", lambda v: v["tensors"]["norm"].update(nbytes=1 << 50), "takes 128 bytes"),
        ("tokenizer/tokenizer_source.json", lambda v: v.update(files=["../../../etc/hostname"]), "no file of the"),
        ("tokenizer/tokenizer_source.json", lambda v: v.update(files=["missing.txt"]), "no file of the"),
        ("tokenizer/tokenizer_source.json", lambda v: v.update(files=[3]), "no file of the|must"),
        ("tokenizer/tokenizer_source.json", lambda v: v.update(kind=3), "kind must be text"),
        ("tokenizer/generation.json", lambda v: v.update(eos_ids="x"), "eos_ids must be a list"),
    ],
)
def test_a_lie_is_found_behind_right_hashes(
    artifact: Path, installation: Installation, name: str, change: Callable[[Any], None], message: str
) -> None:
    change_json(artifact, name, change)
    with pytest.raises(CacheIRError, match=message):
        opened = read_artifact(artifact, installation).open_weights()
        opened.get('stored "norm"')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("rms_norm", "rms_nrom", 1), "rms_nrom"),
        (lambda text: text.replace("module decode", "module prefill"), "is a module of 'prefill'"),
        (lambda text: text[: len(text) // 2], "graphs/decode.cir"),
        (lambda text: text.replace("layer = 1", "layer = 7"), "."),
        (lambda text: "graph @main {\n  yield\n}", "graphs/decode.cir"),
        (lambda text: "\udc80", "graphs/decode.cir"),
    ],
)
def test_a_graph_that_is_wrong_is_refused(
    artifact: Path, installation: Installation, change: Callable[[str], str], message: str
) -> None:
    text = (artifact / "graphs" / "decode.cir").read_text("utf-8")
    changed = change(text)
    assert changed != text
    rewrite(artifact, "graphs/decode.cir", changed.encode("utf-8", "surrogateescape"))
    with pytest.raises(CacheIRError, match=message):
        read_artifact(artifact, installation).open_weights()


@pytest.mark.parametrize(
    ("graph", "size", "message"),
    [
        ("main", "T in [1, 8]", "@main was planned for T up to 1, and max_rows is 8"),
        ("main", "R in [0, 8]", "@main was planned for R up to 1, and max_rows is 8"),
        ("decoder_layer", "T in [1, 8]", "T of @decoder_layer lies in [1, 1], here it is T in [1, 8]"),
        ("head.logits", "R in [1, 64]", "@head.logits was planned for R up to 1, and max_rows is 8"),
    ],
)
def test_a_graph_too_small_for_the_limits_is_refused(
    artifact: Path, installation: Installation, graph: str, size: str, message: str
) -> None:
    text = (artifact / "graphs" / "decode.cir").read_text("utf-8")
    head, found, rest = text.partition(f"graph @{graph} ")
    changed = head + found + rest.replace(f"dim {size}", f"dim {size[0]} in [{size[6]}, 1]", 1)
    assert changed != text
    rewrite(artifact, "graphs/decode.cir", changed.encode())
    with pytest.raises(ArtifactDamagedError, match=re.escape(message)):
        read_artifact(artifact, installation)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_layers": [[0]]}, "group_layers do not fit"),
        ({"group_layers": []}, "group_layers do not fit"),
        ({"group_layers": [[0, 7]]}, "for layer 1, which is not in its KV group"),
        ({"max_tokens": 1 << 40}, "cannot be"),
        ({"max_tokens": 1 << 14}, "@main was planned for T up to 256, and max_tokens is 16384"),
        ({"max_rows": 9}, "@main was planned for (B|T) up to 8, and max_rows is 9"),
        ({"max_seq": 1 << 14}, "@main was planned for M up to 32, and max_seq is 16384"),
        ({"groups": []}, "other KV groups"),
        ({"max_seq": 0}, "cannot be"),
        ({"max_rows": -1}, "cannot be"),
        ({"backend": "warp"}, "no installed plugin has a backend 'warp'"),
        ({"surprise": 1}, "unknown field 'surprise'"),
        ({"spec": {"family": "x"}}, "lacks the field"),
        ({"files": {}}, "does not list"),
    ],
)
def test_a_card_that_lies_is_refused(
    artifact: Path, installation: Installation, fields: dict[str, Any], message: str
) -> None:
    change_card(artifact, **fields)
    with pytest.raises((ArtifactError, BackendUnavailable), match=message):
        read_artifact(artifact, installation)


def test_a_mode_cannot_lead_out_of_the_folder(artifact: Path, installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "secret.cir").write_text("module ../../secret")
    card = open_sealed((artifact / layout.CARD).read_bytes(), "card")
    card["options"]["modes"] = ["../../secret"]
    card["files"]["graphs/../../secret.cir"] = {"nbytes": 1, "sha256": "0"}
    (artifact / layout.CARD).write_bytes(sealed_bytes(card))
    with pytest.raises(ArtifactDamagedError, match="is no name of a file"):
        read_artifact(artifact, installation)


def test_the_location_must_be_a_folder_by_its_whole_path(artifact: Path, installation: Installation) -> None:
    (artifact / layout.LOCATION).write_bytes(sealed_bytes({"root": "model"}))
    with pytest.raises(ArtifactDamagedError, match="root must be an absolute path"):
        read_artifact(artifact, installation)


def test_another_model_in_the_same_place_is_refused(
    artifact: Path, installation: Installation, model: Path, write_fake: Callable[..., Path]
) -> None:
    write_fake(model, words=("a", "c"))
    with pytest.raises(ArtifactDamagedError, match=r"tiny\.fake: its first \d+ bytes are not those"):
        read_artifact(artifact, installation)
    model.write_bytes(model.read_bytes() + b"x")
    with pytest.raises(ArtifactDamagedError, match="when the model was compiled"):
        read_artifact(artifact, installation)
    model.unlink()
    with pytest.raises(ArtifactDamagedError, match="cannot be opened"):
        read_artifact(artifact, installation)


def test_a_kernel_that_refuses_here_is_chosen_again_and_named(
    artifact: Path, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_artifact(artifact, installation)
    monkeypatch.setenv("FAKE_REFUSES", "rms_norm,silu")
    after = read_artifact(artifact, installation)
    assert after.notes
    assert all("this machine is too old" in note and "fake.slow" in note for note in after.notes)
    assert any("rms_norm" in note for note in after.notes)
    used = {
        choice.kernel
        for schedule in after.program.schedules.values()
        for graph in schedule.graphs
        for entry in graph.entries
        for choice in entry.choices
    }
    assert "fake.fast.rms-norm" not in used
    assert "fake.slow.rms-norm" in used
    from cacheir.artifact.compatibility import buffer_uses

    for mode, plan in after.program.plans.items():
        module, schedule = after.program.modules[mode], after.program.schedules[mode]
        assert plan_problems(plan, module, schedule, buffer_uses(installation)) == []
    assert before.notes == ()
    assert verify_artifact(artifact, installation).notes == after.notes


def test_a_kernel_that_is_not_installed_is_named_with_its_package(
    artifact: Path, make_installation: Make, plugin_file: Path
) -> None:
    text = plugin_file.read_text()
    plugin_file.write_text(text.replace('"silu", "rms_norm"', '"silu"'))
    with pytest.raises(MissingKernelError, match=r"needs fake\.(fast|slow)\.rms-norm.*which no installed plugin has"):
        read_artifact(artifact, make_installation())


def test_a_kernel_of_another_op_is_refused(artifact: Path, installation: Installation) -> None:
    def swap(value: Any) -> None:
        for graph in value["graphs"]:
            for entry in graph["entries"]:
                if entry["op_name"] == "rms_norm":
                    entry["choices"][0]["kernel"] = "fake.fast.linear"

    change_json(artifact, "schedules/decode.json", swap)
    with pytest.raises(ArtifactDamagedError, match=r"runs rms_norm with 'fake\.fast\.linear', a kernel for linear"):
        read_artifact(artifact, installation)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_changes_raise_our_errors_alone(
    artifact: Path, installation: Installation, tmp_path: Path, data: st.DataObject
) -> None:
    """One value anywhere in one JSON file becomes another, and all hashes fit."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(artifact, copy)
    name = data.draw(
        st.sampled_from([f for f in files_of(copy) if f.endswith(".json") and f not in layout.SEALED] + [layout.CARD])
    )
    value = json.loads((copy / name).read_bytes())
    spot, steps = value, []
    while isinstance(spot, (dict, list)) and spot:
        keys = sorted(spot) if isinstance(spot, dict) else range(len(spot))
        steps.append(data.draw(st.sampled_from(keys)))
        if isinstance(spot[steps[-1]], (dict, list)) and spot[steps[-1]] and data.draw(st.integers(0, 9)):
            spot = spot[steps[-1]]
        else:
            break
    if not steps or steps == ["seal"]:
        return
    if data.draw(st.booleans()):
        spot[steps[-1]] = data.draw(
            leaves | st.lists(leaves, max_size=2) | st.dictionaries(st.text(max_size=3), leaves)
        )
    else:
        del spot[steps[-1]]
    if name == layout.CARD:
        value.pop("seal", None)
        (copy / name).write_bytes(sealed_bytes(value))
    else:
        rewrite(copy, name, json_bytes(value))
    try:
        opened = read_artifact(copy, installation)
        weights = opened.open_weights()
        for recipe in opened.program.weights:
            weights.get(recipe)
        opened.records()
    except CacheIRError as error:
        assert str(error)
