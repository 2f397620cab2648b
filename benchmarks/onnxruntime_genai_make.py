"""Makes the folder that ONNX Runtime GenAI opens out of the weights of a GGUF file, for benchmarks/against.py.

    PYTHON benchmarks/onnxruntime_genai_make.py FILE.gguf FOLDER [--precision int4|int8|fp32]

PYTHON is that of an environment with `onnxruntime-genai==0.18.0 onnx onnx_ir torch transformers gguf`. It cannot read
GGUF files of quantised weights, so transformers takes the weights apart into float32 first, and ONNX Runtime GenAI's
own model builder makes of them FOLDER: float32 (``fp32``), or 4 or 8 bits in blocks of 32 with products on int8
activations (``int4``, ``int8``; accuracy level 4, its fastest on a CPU). FOLDER/made_from.json says which, and there
benchmarks read it. FOLDER is there whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_QUANTISED = ["--extra_options", "block_size=32", "accuracy_level=4"]
PRECISIONS = {
    "fp32": [],
    "int8": _QUANTISED,
    "int4": _QUANTISED,
}


def main() -> int:
    """Make the folder; 1 where it is there already."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="int4")
    given = parser.parse_args()
    if given.folder.exists():
        print(f"{given.folder} is there already", file=sys.stderr)
        return 1
    given.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder.parent) as name:
        work = Path(name)
        write_plain(given.model, work / "plain")
        build(work / "plain", work / "built", given.precision)
        (work / "built" / "made_from.json").write_text(
            json.dumps({"model": given.model.name, "precision": given.precision}) + "\n"
        )
        (work / "built").rename(given.folder)
    return 0


def write_plain(model: Path, folder: Path) -> None:
    """The weights in float32 as transformers keeps them, with the tokenizer and a configuration of no quantisation."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name).save_pretrained(folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(str(model.parent), gguf_file=model.name, dtype="float32")
    # It says that the weights are quantised, which they no longer are.
    for holder in (loaded, loaded.config):
        for left in ("hf_quantizer", "quantization_config"):
            if hasattr(holder, left):
                delattr(holder, left)
    loaded.is_quantized = False
    loaded.config.architectures = [type(loaded).__name__]
    loaded.save_pretrained(folder)


def build(plain: Path, folder: Path, precision: str) -> None:
    """ONNX Runtime GenAI's folder for the CPU."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(plain), "-o", str(folder)]
    command += ["-p", precision, "-e", "cpu", "-c", str(plain.with_name("cache"))]
    subprocess.run([*command, *PRECISIONS[precision]], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
