"""A CacheIR pass plugin: removes reshapes whose result has the shape they started from."""

from cacheir.plugins import PassSpec, Stage, hookimpl


def drop_reshape(graph, context):
    def rule(op, rewriter):
        if op.name == "reshape" and op.result.type == op.operands[0].type:
            context.note(f"dropped {op.result}")
            return [op.operands[0]]
        return None  # keep every other op

    return context.rewrite(graph, rule)


@hookimpl
def cacheir_register_passes():
    yield PassSpec(
        name="drop-reshape",
        run=drop_reshape,
        stage=Stage.LOGICAL,
        summary="Remove reshapes that change nothing.",
        before=("dead-code",),
    )
