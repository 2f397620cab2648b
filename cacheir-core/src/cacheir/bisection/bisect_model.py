"""Names the first pass, then the rewrite, then the kernel with which the logits leave the reference.

The variants of a program stand in one row: the model as it was written down, run by the meaning of its ops, which is
the reference; after each pass that changed something, still by meaning; the finished program on its backend with every
op run by its meaning; and then with one kernel more each time. The last one is the program itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.artifact import layout
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.program_key import header_facts
from cacheir.bisection.by_meaning import MeaningRunner
from cacheir.bisection.distance import Ruler
from cacheir.bisection.draws import make_draws
from cacheir.bisection.halving import first_wrong
from cacheir.bisection.probe import Evidence, Probe, make_probe
from cacheir.bisection.result import Bisection, Finding, Trial
from cacheir.bisection.search_kernels import KernelSearch
from cacheir.bisection.search_passes import PassSearch
from cacheir.bisection.tolerance import EXACT
from cacheir.compile_work import CompileWork
from cacheir.errors import PassError, UsageError
from cacheir.models.find_model import find_path
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import Installation, default
from cacheir.quantisers.prepare import with_quantised
from cacheir.runtime.backend_choice import choose_backend
from cacheir.runtime.encode import PromptEncoder
from cacheir.runtime.opening import open_tokenizer

if TYPE_CHECKING:
    from cacheir.compile_work import Compiled


def bisect_model(
    model: str | Path,
    *,
    backend: str = "auto",
    prompt: str = "",
    tokens: Sequence[int] = (),
    tolerance: float = 0.0,
    options: CompileOptions | None = None,
    installation: Installation | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bisection:
    """Find what makes a model's logits leave the reference by more than ``tolerance``, or that nothing does.

    ``prompt`` or ``tokens`` are what is fed, ids of bisect's own without either; all positions' logits and the greedy
    and sampled tokens count. ``tolerance`` is in standard deviations of the reference's logits, 0 for one that follows
    what the backend and the chosen kernels round (``bisection/tolerance.py``). ``options`` are as for
    ``compile_model``.

    Raises UsageError for an artifact or a plain graph, BackendError where the reference itself is not finite, and what
    compiling raises but for a pass's errors: a pass that fails is the finding.
    """
    installed = installation or default()
    say = progress or (lambda text: None)
    path = find_path(model, installed)
    if layout.is_artifact(path):
        raise UsageError(f"{path} is an artifact", hint="bisect compiles again and again: name the model it is made of")
    choice = choose_backend(installed, backend)
    path, wanted = with_quantised(path, replace(options or CompileOptions(), target=choice.name), installed, progress)
    work = CompileWork.begin(wanted, installed, None)
    work.check_names()
    opened = work.open(path)
    if opened.spec is None:
        raise UsageError(f"{path} is a plain graph, and bisect compares the logits of decoders")
    limits = work.limits(opened)
    given = tuple(tokens) or _prompt_ids(prompt, opened, installed)
    probe = make_probe(given, vocab_size=opened.spec.vocab_size, limits=limits)
    return _Bisecting(work, opened, probe, tolerance, say).run(str(model))


class _Bisecting:
    """One bisection: the trials so far, and what they are measured with."""

    def __init__(
        self,
        work: CompileWork,
        model: ImportedModel,
        probe: Probe,
        tolerance: float,
        say: Callable[[str], None],
    ) -> None:
        self.work = work
        self.model = model
        self.probe = probe
        self.say = say
        self.tolerance = tolerance
        self.trials: list[Trial] = []

    def run(self, label: str) -> Bisection:
        """The reference, the whole program, and then the halving."""
        meaning = MeaningRunner(self.model, self.work.installation)
        try:
            logical = self.work.build(self.model, self.work.limits(self.model))
            self.say("running the reference")
            reference = meaning.logical(logical, self.probe)
            assert reference.logits is not None
            self.probe = replace(self.probe, draws=make_draws(self.probe, reference.logits))
            self.ruler = Ruler(reference.logits, self.probe.draws)
            compiled = self._compiled()
            passes = PassSearch(
                self.work,
                self.model,
                logical,
                meaning,
                self.probe,
                self.tried,
                reference,
                compiled.result if compiled else None,
            )
            kernels = KernelSearch(compiled, self.work, self.probe, self.tried) if compiled else None
            extra = self.work.options.backend_options
            self.tolerance = self.tolerance or (kernels.tolerance(extra) if kernels else EXACT)
            finding = self._find(passes, kernels)
        finally:
            meaning.close()
        return Bisection(
            model=label,
            backend=self.work.backend.name,
            ids=self.probe.ids,
            decoded=self.probe.decoded,
            tolerance=self.tolerance,
            distance=self.trials[0].distance,
            passes=passes.count,
            sites=len(compiled.result.sites) if compiled else 0,
            kernels=kernels.count if kernels else 0,
            trials=tuple(self.trials),
            finding=finding,
        )

    def tried(self, what: str, run: Callable[[], Evidence]) -> tuple[bool, Trial, Evidence]:
        """Run one variant and write it down: whether it is wrong, the trial, and the answer."""
        try:
            answer = run()
        except MemoryError:
            raise
        # A variant runs plugins' passes and kernels, which may raise anything: that is the fault looked for.
        except Exception as error:  # noqa: BLE001
            answer = Evidence(error=f"{type(error).__name__}: {error}")
        distance = self.ruler.distance(answer)
        trial = Trial(what=what, distance=distance, is_wrong=distance > self.tolerance, error=answer.error)
        self.trials.append(trial)
        self.say(f"run {len(self.trials)}: {what}: {'wrong' if trial.is_wrong else 'right'} ({distance:.1e})")
        return trial.is_wrong, trial, answer

    def _find(self, passes: PassSearch, kernels: KernelSearch | None) -> Finding | None:
        """The one row of variants: 0 is the reference, then the passes, then the backend and its kernels."""
        if kernels is None:
            passes.is_wrong(passes.last)
            return passes.finding(first_wrong(0, passes.last, passes.is_wrong))
        last = passes.last + 1 + kernels.count
        if not kernels.is_wrong(kernels.count):
            return None

        def is_wrong(number: int) -> bool:
            return passes.is_wrong(number) if number <= passes.last else kernels.is_wrong(number - passes.last - 1)

        found = first_wrong(0, last, is_wrong)
        if found <= passes.last:
            return passes.finding(found)
        return kernels.finding(found - passes.last - 1, before=passes.distance(passes.last))

    def _compiled(self) -> Compiled | None:
        """The finished program, None where a pass fails: then that is what is looked for."""
        try:
            return self.work.compile(self.model, header_facts(self.model))
        except PassError as error:
            self.say(f"a pass fails: {error}")
            return None


def _prompt_ids(prompt: str, model: ImportedModel, installation: Installation) -> tuple[int, ...]:
    if not prompt:
        return ()
    if model.tokenizer is None:
        raise UsageError("the model has no tokenizer, so a prompt has no ids", hint="give --tokens")
    return tuple(PromptEncoder(open_tokenizer(model.tokenizer, installation), model.generation).text_ids(prompt))
