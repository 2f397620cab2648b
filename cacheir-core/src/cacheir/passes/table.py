"""All passes of core by name, in the order of their files' names; what runs when follows from their declarations."""

from __future__ import annotations

from cacheir.plugins.specs import PassSpec, Stage

_FUSIONS = ("fuse-qkv", "fuse-norm-qkv-rope", "fuse-swiglu")
_CLEANING = ("infer-shapes", "fold-constants", "drop-no-ops", "common-subexpressions", "convert-layout")

_PASSES = (
    PassSpec(
        name="common-subexpressions",
        run="cacheir.passes.common_subexpressions:common_subexpressions",
        stage=Stage.LOGICAL,
        summary="Compute once what is computed twice from the same operands.",
        after=("infer-shapes", "fold-constants", "drop-no-ops"),
    ),
    PassSpec(
        name="convert-layout",
        run="cacheir.passes.convert_layout:convert_layout",
        stage=Stage.LOGICAL,
        summary="Put weights of matrix products into the layout that kernels pack, once, at load.",
        after=("infer-shapes", "fold-constants", "drop-no-ops", "common-subexpressions"),
    ),
    PassSpec(
        name="dead-code",
        run="cacheir.passes.dead_code:dead_code",
        stage=Stage.LOGICAL,
        summary="Drop ops whose results nobody reads, and weights that nobody needs.",
        after=(*_CLEANING, *_FUSIONS),
    ),
    PassSpec(
        name="drop-no-ops",
        run="cacheir.passes.drop_no_ops:drop_no_ops",
        stage=Stage.LOGICAL,
        summary="Drop ops that give their operand back, and merge changes of shape that follow each other.",
        after=("infer-shapes", "fold-constants"),
    ),
    PassSpec(
        name="final-dead-code",
        run="cacheir.passes.dead_code:dead_code",
        stage=Stage.TARGET,
        summary="Drop what the mode and target passes left without a reader.",
        after=("fold-weights", "fuse-add-norm", "fuse-norm-swiglu", "fuse-horizontal"),
    ),
    PassSpec(
        name="fold-constants",
        run="cacheir.passes.fold_constants:fold_constants",
        stage=Stage.LOGICAL,
        summary="Compute ops whose operands are all written in the graph.",
        after=("infer-shapes",),
        options="cacheir.passes.fold_constants:FoldConstantsOptions",
    ),
    PassSpec(
        name="fold-weights",
        run="cacheir.passes.fold_weights:fold_weights",
        stage=Stage.TARGET,
        summary="Make recipes, run once at load, of ops that read weights and constants alone.",
        after=("quantize-weights",),
        options="cacheir.passes.fold_weights:FoldWeightsOptions",
    ),
    PassSpec(
        name="fuse-add-norm",
        run="cacheir.passes.fuse_add_norm:fuse_add_norm",
        stage=Stage.TARGET,
        summary="Make a residual add and the norm of its sum one op.",
        options="cacheir.passes.fuse_add_norm:FuseAddNormOptions",
    ),
    PassSpec(
        name="fuse-head-argmax",
        run="cacheir.passes.fuse_head_argmax:fuse_head_argmax",
        stage=Stage.MODE,
        summary="Make the projection to the vocabulary and its argmax one op: no logits.",
    ),
    PassSpec(
        name="fuse-horizontal",
        run="cacheir.passes.fuse_horizontal:fuse_horizontal",
        stage=Stage.TARGET,
        summary="Make two norms, or two rotations, that do not need each other one launch.",
        after=("fuse-add-norm", "fuse-norm-swiglu"),
        default=False,
    ),
    PassSpec(
        name="fuse-norm-qkv-rope",
        run="cacheir.passes.fuse_norm_qkv_rope:fuse_norm_qkv_rope",
        stage=Stage.LOGICAL,
        summary="Make the norm, the projections and the rotation before attention one op.",
        after=("fuse-qkv",),
    ),
    PassSpec(
        name="fuse-norm-swiglu",
        run="cacheir.passes.fuse_norm_swiglu:fuse_norm_swiglu",
        stage=Stage.TARGET,
        summary="Make a norm that only the gated projections read part of them.",
        after=("fuse-add-norm",),
        default=False,
    ),
    PassSpec(
        name="fuse-qkv",
        run="cacheir.passes.fuse_qkv:fuse_qkv",
        stage=Stage.LOGICAL,
        summary="Make the three projections that attention reads one op over three weights.",
        after=_CLEANING,
    ),
    PassSpec(
        name="fuse-swiglu",
        run="cacheir.passes.fuse_swiglu:fuse_swiglu",
        stage=Stage.LOGICAL,
        summary="Make the gate and up projections, the activation and the product one op.",
        after=_CLEANING,
    ),
    PassSpec(
        name="gather-last-rows",
        run="cacheir.passes.gather_last_rows:gather_last_rows",
        stage=Stage.MODE,
        summary="Choose the rows that need a head before the row-wise ops at the end of main.",
    ),
    PassSpec(
        name="hardware-hints",
        run="cacheir.passes.hardware_hints:hardware_hints",
        stage=Stage.TARGET,
        summary="Say beside each op what a kernel may do about caches and overlap.",
        after=("final-dead-code",),
        default=False,
        options="cacheir.passes.hardware_hints:HardwareHintsOptions",
    ),
    PassSpec(
        name="infer-shapes",
        run="cacheir.passes.infer_shapes:infer_shapes",
        stage=Stage.LOGICAL,
        summary="Compute the type of each result again, and drop sizes that no type holds.",
    ),
    PassSpec(
        name="quantize-weights",
        run="cacheir.passes.quantize_weights:quantize_weights",
        stage=Stage.TARGET,
        summary="Read the weights that the quantiser's plan names in a block format.",
        before=("fuse-add-norm", "fuse-norm-swiglu", "final-dead-code"),
        options="cacheir.passes.quantize_weights:QuantizeWeightsOptions",
    ),
)


def core_passes() -> dict[str, PassSpec]:
    """Name -> record of every pass that core brings; a new dictionary at each call."""
    return {spec.name: spec for spec in _PASSES}
