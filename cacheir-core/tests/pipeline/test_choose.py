"""Which passes take part, and how their options are read."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from cacheir.errors import PassOptionError, UsageError
from cacheir.pipeline.choose import choose_passes, describe_options, pass_options
from cacheir.plugins.specs import PassSpec, Stage


@dataclass(frozen=True)
class FuseOptions:
    min_rows: int = 4
    scale: float = 0.5
    eager: bool = False
    label: str = "x"


@dataclass(frozen=True)
class NeedsOptions:
    width: int


def contribution(name: str, **fields: Any) -> Any:
    spec = PassSpec(name=name, run="nowhere:run", stage=Stage.LOGICAL, summary="A pass.", **fields)
    return SimpleNamespace(spec=spec, plugin=SimpleNamespace(name="test"))


INSTALLED = [
    contribution("dead-code"),
    contribution("fuse-qkv", options=FuseOptions),
    contribution("experiment", default=False),
]


def names(**choice: Any) -> list[str]:
    return [item.spec.name for item in choose_passes(INSTALLED, **choice)]


def test_defaults_take_part_and_others_only_when_asked_for() -> None:
    assert names() == ["dead-code", "fuse-qkv"]
    assert names(requests=["experiment"]) == ["dead-code", "experiment", "fuse-qkv"]
    assert names(skips=["dead-code"]) == ["fuse-qkv"]


@pytest.mark.parametrize("spelling", ["fuse-qkv", "fuse_qkv", "FUSE_qkv"])
def test_names_match_with_dashes_and_underscores_alike(spelling: str) -> None:
    assert names(skips=[spelling]) == ["dead-code"]
    (chosen,) = [item for item in choose_passes(INSTALLED, requests=[spelling]) if item.spec.name == "fuse-qkv"]
    assert chosen.asked_for


def test_options_come_from_the_dataclass_of_the_pass() -> None:
    (fuse,) = [
        item
        for item in choose_passes(INSTALLED, requests=["fuse-qkv{min-rows=7, scale=2, eager=yes,label=a b}"])
        if item.spec.name == "fuse-qkv"
    ]
    assert fuse.options == FuseOptions(min_rows=7, scale=2.0, eager=True, label="a b")
    assert choose_passes(INSTALLED)[1].options == FuseOptions()


@pytest.mark.parametrize(
    ("request_text", "said"),
    [
        ("fuse-qkv{rows=7}", "'rows'"),
        ("fuse-qkv{min_rows=seven}", "takes int for 'min_rows', not 'seven'"),
        ("fuse-qkv{scale=wide}", "takes float"),
        ("fuse-qkv{eager=perhaps}", "takes true or false"),
        ("fuse-qkv{min_rows}", "cannot read 'min_rows'"),
    ],
)
def test_a_wrong_option_is_an_error_that_lists_the_fields(request_text: str, said: str) -> None:
    with pytest.raises(PassOptionError, match="fuse-qkv") as caught:
        choose_passes(INSTALLED, requests=[request_text])
    assert said in str(caught.value)
    for field in ("min-rows: int = 4", "scale: float = 0.5", "eager: bool = False"):
        assert field in str(caught.value.hint)


def test_a_pass_without_options_refuses_them() -> None:
    with pytest.raises(PassOptionError, match="has no options"):
        choose_passes(INSTALLED, requests=["dead-code{x=1}"])


def test_an_option_without_default_must_be_given() -> None:
    spec = contribution("needy", options=NeedsOptions).spec
    assert pass_options(spec, "width=3") == NeedsOptions(3)
    assert describe_options(spec) == "width: int"
    with pytest.raises(PassOptionError, match="needs a value for width"):
        pass_options(spec, "")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="'fuze-qkv'") as caught:
        choose_passes(INSTALLED, requests=["fuze-qkv"])
    assert caught.value.hint == "did you mean 'fuse-qkv'?"
    with pytest.raises(UsageError) as caught:
        choose_passes(INSTALLED, skips=["zzz"])
    assert caught.value.hint == "known: dead-code, experiment, fuse-qkv"


def test_asking_for_and_skipping_one_pass_is_an_error() -> None:
    with pytest.raises(UsageError, match="both asked for and skipped"):
        choose_passes(INSTALLED, requests=["fuse-qkv"], skips=["fuse_qkv"])


def test_a_step_cannot_be_skipped() -> None:
    with pytest.raises(UsageError, match="cannot be left out"):
        choose_passes(INSTALLED, skips=["plan_memory"], fixed=["plan-memory"])


@pytest.mark.parametrize("text", ["", "fuse{", "fuse}x", "a b"])
def test_text_that_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        choose_passes(INSTALLED, requests=[text])
