"""From a model to a program on disk and back: ``compile_model`` makes an artifact, ``open_program`` reuses one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cacheir import settings
from cacheir.arguments import (
    checked_count,
    checked_flag,
    checked_instance,
    checked_pairs,
    checked_place,
    checked_string,
    checked_strings,
)
from cacheir.artifact import cache as program_cache
from cacheir.artifact import layout
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.partial import remove_leftovers
from cacheir.artifact.program_key import (
    header_facts,
    recall_facts,
    remember_facts,
)
from cacheir.artifact.read import read_artifact
from cacheir.compile_work import Compiled, CompileWork, Progress, tell
from cacheir.errors import ArtifactError, UsageError
from cacheir.models.find_model import find_path
from cacheir.plugins.installation import Installation, default

__all__ = ["CompileWork", "Compiled", "compile_model", "open_program"]

DEFAULT_OPTIONS = CompileOptions()


def compile_model(
    model_path: str | Path,
    target: str = "cpu",
    quant: str | None = None,
    mode: Sequence[str] = CompileOptions.modes,
    max_seq: int = 0,
    output: str | Path | None = None,
    *,
    max_rows: int = CompileOptions.max_rows,
    max_tokens: int = CompileOptions.max_tokens,
    passes: Sequence[str] = (),
    skip_passes: Sequence[str] = (),
    kernels: Mapping[str, str] | None = None,
    precise: bool = False,
    batch_invariant: bool = False,
    strict: bool = False,
    kv_window: int = 0,
    kv_sinks: int = 0,
    backend_options: Mapping[str, str] | None = None,
    materialise: bool = False,
    installation: Installation | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Compile a model for a backend, always anew, and write the artifact to ``output`` (without it: into the cache).

    ``model_path`` is a folder, a file or a named model. ``max_seq`` 0 means the model's own limit, at most
    ``DEFAULT_MAX_SEQ``. ``passes`` and ``skip_passes`` are as on the command line, ``kernels`` maps an op to the kernel
    that must run it. ``strict`` refuses a model of which something was left unused. ``kv_window`` and ``kv_sinks`` are
    as in ``CompileOptions``. ``backend_options`` are the target's own and go into the artifact. ``materialise`` copies
    the weights into it; else it names the model's files.

    Raises UsageError for an argument that cannot be, ModelError's children for the model, PassError's for a pass,
    LoweringError's for a plan that cannot be made, ArtifactError where the artifact cannot be written.
    """
    checked_place("model", model_path)
    if output is not None:
        checked_place("output", output)
    options = CompileOptions(
        target=checked_string("target", target),
        quant=checked_string("quant", quant or ""),
        modes=checked_strings("mode", mode),
        max_seq=max_seq,
        max_rows=max_rows,
        max_tokens=max_tokens,
        passes=checked_strings("passes", passes),
        skip_passes=checked_strings("skip_passes", skip_passes),
        kernels=checked_pairs("kernels", kernels or {}),
        precise=checked_flag("precise", precise),
        batch_invariant=checked_flag("batch_invariant", batch_invariant),
        strict=checked_flag("strict", strict),
        kv_window=checked_count("kv_window", kv_window),
        kv_sinks=checked_count("kv_sinks", kv_sinks),
        backend_options=checked_pairs("backend_options", backend_options or {}),
    )
    installed = installation or default()
    path = find_path(model_path, installed)
    if layout.is_artifact(path):
        raise UsageError(f"{path} is an artifact already", hint="compile the model that it was made from")
    path, options = _quantised(path, options, installed, progress)
    work = CompileWork.begin(options, installed, progress)
    if output is not None:
        from cacheir.artifact.write import check_place

        check_place(Path(output))
    elif materialise:
        raise UsageError("materialise copies the weights into an artifact of its own", hint="name it with output")
    model = work.open(path)
    compiled = work.compile(model, header_facts(model))
    if output is not None:
        return work.write(compiled, Path(output), with_location=True, materialise=materialise)
    work.from_cache(compiled.facts)  # one that cannot be used goes, so that it is not taken for this one
    place = program_cache.program_path(work.cache, compiled.lock.program_key)
    if work.unknown_plugins:
        return work.in_memory(compiled, place)
    return work.write(compiled, place, with_location=False, materialise=False)


def open_program(
    model: str | Path,
    options: CompileOptions = DEFAULT_OPTIONS,
    *,
    installation: Installation | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """The program of a model, from the cache where it was compiled before; an artifact is opened as it is.

    A cached program that cannot be used is named on stderr, with the reason, and made again. So is what processes that
    were killed left half written in the cache or beside the artifact; it is removed.
    """
    installed = installation or default()
    checked_instance("options", options, CompileOptions, optional=False)
    path = find_path(model, installed)
    if layout.is_artifact(path):
        if options.quant:
            raise UsageError(
                f"{path} is an artifact, whose weights are what they are",
                hint=f"compile the model again with --quant {options.quant}",
            )
        remove_leftovers(path)
        program_cache.remove_unfinished(settings.cache_dir())
        return read_artifact(path, installed)
    path, options = _quantised(path, options, installed, progress)
    work = CompileWork.begin(options, installed, progress)
    facts, opened = recall_facts(path, work.plugins, work.cache), None
    if facts is None:
        opened = work.open(path)
        facts = header_facts(opened)
        tell(remember_facts(path, work.plugins, work.cache, facts))
    cached = work.from_cache(facts)
    if cached is not None:
        return cached
    compiled = work.compile(opened or work.open(path), facts)
    place = program_cache.program_path(work.cache, compiled.lock.program_key)
    if work.unknown_plugins:
        return work.in_memory(compiled, place)
    try:
        made = work.write(compiled, place, with_location=False, materialise=False)
    except ArtifactError as error:
        tell(f"the compiled program is not kept for the next time: {error}")
        return work.in_memory(compiled, place)
    program_cache.shrink(work.cache, settings.gigabytes("CACHEIR_CACHE_LIMIT_GB") * 1e9, keep=place)
    return made


def _quantised(
    path: Path, options: CompileOptions, installation: Installation, progress: Progress | None
) -> tuple[Path, CompileOptions]:
    """What is to be compiled, and how, where a quantiser is named."""
    if not options.quant:
        return path, options
    from cacheir.quantisers.prepare import with_quantised

    return with_quantised(path, options, installation, progress)
