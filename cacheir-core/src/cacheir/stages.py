"""A compile in two parts: stop after a pass and write the text, go on from that text to the same artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.program_key import header_facts, make_lock
from cacheir.artifact.staged import read_stage, write_stage
from cacheir.artifact.write import check_place
from cacheir.compile_work import CompileWork, Progress
from cacheir.errors import ArtifactDamagedError, ArtifactError, UsageError, VerifyError
from cacheir.ir.graph import Module
from cacheir.ir.verify import verify_module
from cacheir.models.find_model import find_path
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.names import fold_name
from cacheir.pipeline.program import Paused, PipelineResult
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.specs import Stage
from cacheir.quantisers.prepare import with_quantised

DEFAULT_OPTIONS = CompileOptions()


def compile_until(
    model: str | Path,
    until: str,
    output: str | Path,
    options: CompileOptions = DEFAULT_OPTIONS,
    *,
    installation: Installation | None = None,
    progress: Progress | None = None,
) -> Path:
    """Run the passes up to ``until``, that included, and write the text of the modules to the folder ``output``.

    Raises what ``compile_model`` raises, and UsageError for a name that is no pass or program step of the pipeline.
    """
    work, path, opened, result = _stopped(model, until, options, installation, progress)
    lock = make_lock(header_facts(opened), work.options, work.backend, work.plugins)
    paused = paused_after(result)
    write_stage(Path(output), paused, options=work.options, model=path, program_key=lock.program_key)
    return Path(output)


def compile_from(
    folder: str | Path,
    output: str | Path,
    *,
    after: str = "",
    materialise: bool = False,
    installation: Installation | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Go on from what ``compile_until`` wrote to ``folder``, and write the artifact that one compile would have made.

    ``after`` names the pass that the folder is expected to have stopped after, "" for any. Raises UsageError where it
    is another, ArtifactError where model, plugins or core are not those that it was begun with, ArtifactDamagedError
    for a text that was changed or is not valid.
    """
    card, paused = read_stage(Path(folder))
    if after and fold_name(after) != fold_name(paused.until):
        raise UsageError(f"{folder} stopped after {paused.until}, not {after}", hint=f"--from {paused.until}")
    check_place(Path(output))
    work = CompileWork.begin(card.options, installation, progress)
    model = work.open(find_path(card.model, work.installation))
    facts = header_facts(model)
    if make_lock(facts, work.options, work.backend, work.plugins).program_key != card.program_key:
        raise ArtifactError(
            f"{folder}: the model, the plugins or CacheIR itself changed since the compile was stopped",
            hint="compile again with --until",
        )
    ops = work.installation.ops.by_name()
    for module in (paused.logical, *paused.modules.values()):
        try:
            verify_module(module, ops, stage=(Stage.TARGET if module.mode else Stage.LOGICAL).value)
        except VerifyError as error:
            raise ArtifactDamagedError(f"{folder}: {error}") from error
    compiled = work.compile(model, facts, paused)
    return work.write(compiled, Path(output), with_location=True, materialise=materialise)


def modules_after(
    model: str | Path,
    until: str,
    options: CompileOptions = DEFAULT_OPTIONS,
    *,
    installation: Installation | None = None,
    progress: Progress | None = None,
) -> Mapping[str, Module]:
    """The modules after the pass ``until``: by mode, or the logical one under "" where no mode was begun."""
    _, _, _, result = _stopped(model, until, options, installation, progress)
    return result.modules or {"": result.logical}


def _stopped(
    model: str | Path,
    until: str,
    options: CompileOptions,
    installation: Installation | None,
    progress: Progress | None,
) -> tuple[CompileWork, Path, ImportedModel, PipelineResult]:
    installed = installation or default()
    path, options = with_quantised(find_path(model, installed), options, installed, progress)
    work = CompileWork.begin(options, installed, progress)
    opened = work.open(path)
    limits = work.limits(opened)
    return work, path, opened, work.run_passes(work.build(opened, limits), opened, limits, until=until)


def paused_after(result: PipelineResult) -> Paused:
    """A stopped pipeline as it is kept."""
    records = tuple(replace(record, seconds=round(record.seconds, 6)) for record in result.records)
    return Paused(until=result.until, logical=result.logical, modules=result.modules, records=records)
