"""A CacheIR plugin: the quantiser outer-layers, which rounds all layers but the outer ones."""

from cacheir.plugins import QuantSpec, hookimpl

FORMAT, BLOCK = "q8_0", 32  # a format of core: 32 signed bytes with one scale


def plan(spec, types, options):
    """{canonical weight key: format} for the matrices of all layers between the first and the last one."""
    inner = {f"layers.{layer}" for layer in range(1, len(spec.layers) - 1)} or {"layers.0"}
    return {
        key: FORMAT
        for key, type_ in types.items()
        if ".".join(key.split(".")[:2]) in inner and len(type_.shape) == 2 and type_.shape[1].constant % BLOCK == 0
    }


@hookimpl
def cacheir_register_quantizers():
    yield QuantSpec(
        name="outer-layers",
        summary="8 bits, the outer layers left alone.",
        formats=(FORMAT,),
        plan="cacheir_outer_layers:plan",
    )
