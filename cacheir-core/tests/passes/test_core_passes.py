"""Every pass of core under the conformance class: golden cases, idleness, purity, validity, the same numbers."""

from __future__ import annotations

from cacheir.passes.table import core_passes
from cacheir.testing import PassTests


class TestInferShapes(PassTests):
    pass_name = "infer-shapes"
    cases = "cases/infer-shapes"


class TestFoldConstants(PassTests):
    pass_name = "fold-constants"
    cases = "cases/fold-constants"


class TestDropNoOps(PassTests):
    pass_name = "drop-no-ops"
    cases = "cases/drop-no-ops"


class TestCommonSubexpressions(PassTests):
    pass_name = "common-subexpressions"
    cases = "cases/common-subexpressions"


class TestConvertLayout(PassTests):
    pass_name = "convert-layout"
    cases = "cases/convert-layout"


class TestFoldWeights(PassTests):
    pass_name = "fold-weights"
    cases = "cases/fold-weights"


class TestFuseHorizontal(PassTests):
    pass_name = "fuse-horizontal"
    cases = "cases/fuse-horizontal"


class TestHardwareHints(PassTests):
    pass_name = "hardware-hints"
    cases = "cases/hardware-hints"


class TestDeadCode(PassTests):
    pass_name = "dead-code"
    cases = "cases/dead-code"


class TestFinalDeadCode(PassTests):
    pass_name = "final-dead-code"
    cases = "cases/dead-code"


class TestFuseQkv(PassTests):
    pass_name = "fuse-qkv"
    cases = "cases/fuse-qkv"


class TestFuseNormQkvRope(PassTests):
    pass_name = "fuse-norm-qkv-rope"
    cases = "cases/fuse-norm-qkv-rope"


class TestFuseSwiglu(PassTests):
    pass_name = "fuse-swiglu"
    cases = "cases/fuse-swiglu"


class TestFuseAddNorm(PassTests):
    pass_name = "fuse-add-norm"
    cases = "cases/fuse-add-norm"


class TestFuseNormSwiglu(PassTests):
    pass_name = "fuse-norm-swiglu"
    cases = "cases/fuse-norm-swiglu"


class TestGatherLastRows(PassTests):
    pass_name = "gather-last-rows"
    cases = "cases/gather-last-rows"


class TestFuseHeadArgmax(PassTests):
    pass_name = "fuse-head-argmax"
    cases = "cases/fuse-head-argmax"


def test_every_pass_of_core_has_a_class_here() -> None:
    tested = {value.pass_name for value in globals().values() if isinstance(value, type) and "pass_name" in vars(value)}
    assert tested == set(core_passes())


class TestQuantizeWeights(PassTests):
    pass_name = "quantize-weights"
    cases = "cases/quantize-weights"
    options = "format=q8_0"
    tolerance = 0.05  # what eight bits cost
