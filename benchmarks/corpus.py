"""Runs llama.cpp's tokenizer vectors and chat templates against ours, and writes benchmarks/corpus.txt.

    python benchmarks/corpus.py [--folder WHERE]        or: make corpus

The files come from the source package of `llama-cpp-python`, which `pip download` fetches once into ``--folder``
(77 MB; some of the vocabularies are not free, so nothing of it is kept in the repository). A vocabulary is right where
every text gives llama.cpp's ids. A template is right where it gives what transformers gives, or is refused by both, for
each of several conversations. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from cacheir.errors import CacheIRError
from cacheir.plugins import resolve
from cacheir.plugins.installation import default
from cacheir.runtime.chat_template import ChatTemplate
from cacheir_importers.gguf.reader import read_header
from cacheir_importers.gguf.tokenizer_arrays import read_tokenizer

PACKAGE = "llama-cpp-python==0.3.36"
OUT = Path(__file__).with_suffix(".txt")
VECTORS, TEMPLATES = 15, 70
_MODELS = "vendor/llama.cpp/models/"
_BETWEEN_TEXTS = "\n__ggml_vocab_test__\n"
_MOST_BYTES = 64 << 20  # of one file of the package

_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number", "description": "One of them."}}},
    },
}
_ASKED = {"role": "user", "content": "What is 1 < 2 & 3?\n"}
_CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call_0001", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
]}  # fmt: skip
_RESULT = {"role": "tool", "name": "add", "tool_call_id": "call_0001", "content": "3"}
_LONG = [
    {"role": "system", "content": " Be brief. "},
    _ASKED,
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nTrue."},
    {"role": "user", "content": "日本語 😀"},
]
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [_ASKED]},
    {"messages": _LONG[:2]},
    {"messages": _LONG, "add_generation_prompt": False},
    {"messages": _LONG, "variables": {"enable_thinking": False}},
    {"messages": _LONG[:2], "tools": [_TOOL]},
    {"messages": [_ASKED, _CALL, _RESULT], "tools": [_TOOL]},
    {"messages": _LONG[:2], "variables": {"functions": "[]", "datetime": "2026-01-01"}},
)
# transformers writes no generators as JSON, llama.cpp does and so do we: its side gets the list that is meant.
_GENERATOR, _LIST = "map(attribute='function') | tojson", "map(attribute='function') | list | tojson"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def fetch(folder: Path) -> Path:
    """The folder with the package's models, fetched and unpacked where it is not there yet."""
    models = folder / "models"
    if models.is_dir():
        return models
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
    subprocess.run([*command, PACKAGE], check=True)
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    unfinished = folder / "models.unfinished"
    with tarfile.open(archive) as package:
        for member in package:
            _, _, inside = member.name.partition("/")
            place = PurePosixPath(inside)
            if not (member.isfile() and inside.startswith(_MODELS)) or ".." in place.parts or member.size > _MOST_BYTES:
                continue
            target = unfinished / place.relative_to(_MODELS)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = package.extractfile(member)
            assert content is not None
            target.write_bytes(content.read())
    unfinished.rename(models)
    return models


def vectors(models: Path) -> Iterator[tuple[str, str]]:
    """Name of each vocabulary that has vectors, and what is wrong with it, "" for nothing."""
    for texts_file in sorted(models.glob("ggml-vocab-*.gguf.inp")):
        file = texts_file.with_suffix("")
        texts = texts_file.read_text(encoding="utf-8").split(_BETWEEN_TEXTS)
        wanted = [list(map(int, line.split())) for line in file.with_suffix(".gguf.out").read_text().splitlines()]
        try:
            source = read_tokenizer(read_header(file).metadata, file.name)
            assert source is not None
            tokenizer = resolve(default().tokenizers[source.kind].load)(source)
        except CacheIRError as error:
            yield file.stem, f"is refused: {error}"
            continue
        wrong = [text for text, ids in zip(texts, wanted) if tokenizer.encode(text) != ids]
        few = "" if len(wanted) > 40 else f"has only {len(wanted)} texts"
        yield file.stem, f"gives other ids for {len(wrong)} of {len(wanted)} texts: {wrong[0]!r}" if wrong else few


def templates(models: Path) -> Iterator[tuple[str, str]]:
    """Name of each chat template, and what is wrong with it, "" for nothing."""
    for file in sorted((models / "templates").glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        answers = [(ours(source, chat), theirs(source, chat)) for chat in CHATS]
        different = [number for number, (our, their) in enumerate(answers) if our != their]
        if different:
            our, their = answers[different[0]]
            yield file.name, f"differs in conversations {different}: {_difference(our, their)}"
        else:
            yield file.name, "" if any(our is not None for our, _ in answers) else "gives no text at all"


def ours(source: str, chat: dict[str, Any]) -> str | None:
    """What we make of a conversation, None where it is refused."""
    try:
        return ChatTemplate(source, SPECIAL).render(**chat)
    except CacheIRError:
        return None


def theirs(source: str, chat: dict[str, Any]) -> str | None:
    """What transformers makes of it, None where it is refused."""
    try:
        texts, _ = render_jinja_template(
            conversations=[chat["messages"]],
            tools=chat.get("tools"),
            chat_template=source.replace(_GENERATOR, _LIST),
            add_generation_prompt=chat.get("add_generation_prompt", True),
            **SPECIAL,
            **chat.get("variables", {}),
        )
    except Exception:  # noqa: BLE001 - jinja's errors, and whatever a template runs into
        return None
    return str(texts[0])


def _difference(our: str | None, their: str | None) -> str:
    if our is None or their is None:
        return f"refused by {'us' if our is None else 'transformers'} alone"
    place = next((at for at, (a, b) in enumerate(zip(our, their)) if a != b), min(len(our), len(their)))
    return f"{our[place : place + 40]!r}, not {their[place : place + 40]!r}"


def main() -> None:
    """Run both and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(".tmp/corpus"))
    models = fetch(parser.parse_args().folder)
    lines, right = [f"{PACKAGE}"], True
    for what, least, results in (
        ("tokenizer vector sets", VECTORS, list(vectors(models))),
        ("chat templates", TEMPLATES, list(templates(models))),
    ):
        faults = [f"  {name} {fault}" for name, fault in results if fault]
        right = right and not faults and len(results) >= least
        lines += [*faults, f"{what}: {len(results) - len(faults)} of {len(results)} right ({least} are known)"]
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
