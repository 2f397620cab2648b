"""What the plugin adds, as data: everything that needs NumPy or the IR is named by string."""

from cacheir.plugins import FamilySpec, KernelSpec, hookimpl


@hookimpl
def cacheir_register_ops():
    from cacheir.ir import OpDef, Operand

    yield OpDef(
        name="relu_squared",
        dialect="nn",
        operands=(Operand("x", "any float"),),
        results=("out",),
        infer="cacheir_relu_squared.op:infer",
        decompose="cacheir_relu_squared.op:decompose",
        doc="the square of each element that is above zero, 0 for the others",
        examples="cacheir_relu_squared.op:examples",
    )


@hookimpl
def cacheir_register_kernels():
    yield KernelSpec(
        name="cpu.numpy.relu_squared",
        op="relu_squared",
        target="cpu.numpy",
        entry="cacheir_relu_squared.kernel:relu_squared",
        dtypes=("f32",),
    )


@hookimpl
def cacheir_register_families():
    yield FamilySpec(
        name="relu-squared",
        summary="Llama with the squared ReLU as activation.",
        architectures=("ReluSquaredForCausalLM",),
        gguf_architectures=(),
        config="cacheir_relu_squared.family:read_config",
        gguf_config="cacheir_relu_squared.family:read_config",
        names="cacheir_importers.families.names:tensor_names",
    )
