"""A plugin for tests: reads ``.fake`` models, and offers kernels for a backend that nobody runs.

A ``.fake`` file is the length of a JSON header in 8 bytes, the header, and the data of the tensors.
"""

import hashlib
import json
import os

from cacheir.plugins import BackendSpec, ImporterSpec, KernelSpec, ModelSpec, hookimpl


def import_fake(path, options):
    from cacheir.models.decoder_spec import DecoderSpec
    from cacheir.models.imported import GenerationDefaults, ImportedModel, TokenizerSource, WeightSource
    from cacheir.schedule.record_json import from_json

    IMPORTS.append(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(size)
    header = json.loads(text)
    sources = {
        key: from_json(WeightSource, {**source, "file": path.name, "offset": source["offset"] + 8 + size}, key)
        for key, source in header["sources"].items()
    }
    extra = path.with_suffix(".words")
    return ImportedModel(
        root=path.parent,
        files=(path.name,),
        importer="fake",
        header_hash=hashlib.sha256(text).hexdigest(),
        sources=sources,
        spec=from_json(DecoderSpec, header["spec"], "spec"),
        tokenizer=TokenizerSource(
            kind="fake", data={"words": header["words"]}, files={"words.txt": extra} if extra.exists() else {}
        ),
        generation=GenerationDefaults(eos_ids=(1,), chat_template="{{ x }}", special_tokens={"eos_token": "</s>"}),
        notes=("made up",),
    )


IMPORTS = []  # the paths that were opened, so that a test can tell a cache hit


def sniff(path):
    if not path.is_file():
        return "not a file"
    return None if path.suffix == ".fake" else f"{path.suffix or 'no suffix'} is not .fake"


def refuses(op):
    """As a machine without some instruction would."""
    return "this machine is too old" if op.name in os.environ.get("FAKE_REFUSES", "").split(",") else None


def receive(folder):
    """A driver that came along makes the machine new enough."""
    if (folder / "drivers.txt").read_bytes() == b"new" and os.environ.get("FAKE_TAKES"):
        os.environ["FAKE_REFUSES"] = ""


def find_named():
    from pathlib import Path

    return Path(os.environ["FAKE_MODEL"])


def never_called(*operands, **attrs):
    raise AssertionError("tests of artifacts run no kernel")


@hookimpl
def cacheir_register_importers():
    yield ImporterSpec(name="fake", summary="Fake models.", run=import_fake, suffixes=(".fake",), sniff=sniff)


@hookimpl
def cacheir_register_models():
    yield ModelSpec(name="pet", summary="A fake model.", find=find_named, distribution="none", license="MIT")


@hookimpl
def cacheir_register_backends():
    yield BackendSpec(
        name="fake",
        summary="Runs nothing.",
        targets=("fake.fast", "fake.slow"),
        executor=never_called,
        probe=lambda: None,
        row_classes=(1, 8),
        carries=lambda: {"drivers.txt": b"new"},
        receives=receive,
    )


@hookimpl
def cacheir_register_kernels():
    for op in ("silu", "rms_norm", "linear", "add", "fused_swiglu", "fused_add_norm"):
        yield KernelSpec(
            name=f"fake.fast.{op.replace('_', '-')}",
            op=op,
            target="fake.fast",
            entry=never_called,
            refuses=refuses,
            in_place=op in ("silu", "add"),
            max_rows=8,
        )
        yield KernelSpec(
            name=f"fake.slow.{op.replace('_', '-')}", op=op, target="fake.slow", entry=never_called, writes_out=False
        )
