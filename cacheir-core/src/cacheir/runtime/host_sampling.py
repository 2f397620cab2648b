"""Sampling on the host from an executor's logits: where no head samples within a mask, and by plugins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cacheir.errors import CacheIRError, PluginError
from cacheir.plugins.ref import resolve
from cacheir.quick_dataclass import dataclass
from cacheir.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np

    from cacheir.plugins.installation import Installation
    from cacheir.plugins.specs import LogitsProcessorSpec, SamplerSpec


@dataclass(frozen=True)
class HostSampler:
    """What plugins made for one answer: ``stages`` change its logits, and ``pick`` takes logits f32 [1, V] to ids [1].

    ``pick`` is that of the sampler ``name``; without one core's rule picks.
    """

    name: str = ""
    pick: Callable[[np.ndarray], Any] | None = None
    stages: tuple[LogitsStage, ...] = ()


@dataclass(frozen=True)
class ProcessorStage:
    """The plugin's logits processor ``name`` as a ``LogitsStage``: a function from ids and logits f32 [V] to logits."""

    name: str
    change: Callable[[Sequence[int], np.ndarray], np.ndarray]

    def process(self, ids: Sequence[int], logits: np.ndarray) -> np.ndarray:
        """What the plugin makes of ``logits`` f32 [V], which it may write into."""
        return self.change(ids, logits)

    def accept(self, token: int) -> None:
        """Nothing: the next call has the token among its ids."""


def open_sampler(params: SamplingParams, installation: Installation) -> HostSampler | None:
    """The sampler and the logits processors that ``params`` names, made for one answer; None where it names none.

    Raises UsageError for a name that no plugin registers, PluginError where one cannot be made.
    """
    if not params.by_plugins:
        return None
    processors = [installation.logits_processors[name] for name in params.logits_processors]
    stages = tuple(ProcessorStage(one.name, _made("logits processor", one, params)) for one in processors)
    if not params.sampler:
        return HostSampler(stages=stages)
    spec = installation.samplers[params.sampler]
    return HostSampler(spec.name, _made("sampler", spec, params), stages)


def _made(kind: str, spec: SamplerSpec | LogitsProcessorSpec, params: SamplingParams) -> Any:
    try:
        return resolve(spec.factory)(params)
    except CacheIRError:
        raise
    except Exception as error:
        raise PluginError(f"{kind} {spec.name!r} raised {type(error).__name__}: {error}") from error


class LogitsStage(Protocol):
    """What stands between the logits of one request and its next token: a grammar, or a plugin's processor.

    ``process`` gives logits f32 [V] for those after ``ids``, its argument or others; ``-inf`` bars a token. ``accept``
    is told each token that was taken, in order.
    """

    def process(self, ids: Sequence[int], logits: np.ndarray) -> np.ndarray: ...

    def accept(self, token: int) -> None: ...


def pick_on_host(
    logits: np.ndarray,
    sampling: SamplingParams,
    ids: Sequence[int],
    draw: int,
    mask: np.ndarray | None,
    *,
    sampler: HostSampler | None = None,
    stages: Sequence[LogitsStage] = (),
) -> tuple[int | None, str | None]:
    """The token after ``ids``, of which ``draw`` are the answer's, or the sentence that says why there is none.

    ``logits`` f32 [V] are the model's. In this order: they must be finite; penalties, biases and bars of ``sampling``
    (``reference/penalties.py``); the stages, those of plugins first, so that no plugin lifts what a grammar bars; then
    core's rule or a plugin's sampler (``PluginError`` where that or a stage fails).
    """
    position = len(ids) - 1
    if fault := _not_finite(logits, position):
        return None, fault
    seen = _adjusted(logits, sampling, ids, draw) if sampling.adjusts else logits
    stages = (*(sampler.stages if sampler is not None else ()), *stages)
    for stage in stages:
        seen = _processed(stage, ids, seen)
    if sampler is not None and sampler.pick is not None:
        token, error = sample_by_plugin(seen, sampler, position, mask)
    else:
        token, error = sample_on_host(seen, sampling, position, draw, mask)
    if token is not None:
        for stage in stages:
            stage.accept(token)
    return token, error


def sample_on_host(
    logits: np.ndarray, sampling: SamplingParams, position: int, draw: int, mask: np.ndarray | None
) -> tuple[int | None, str | None]:
    """The token for ``logits`` f32 [V] by core's rule, or the sentence that says why there is none.

    ``position`` is that of the last token fed, as in every executor, so that both ways draw the same numbers.
    """
    from cacheir.reference.sampling import NO_TOKEN, allowed_tokens, sample_row

    token = sample_row(
        logits,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        seed=sampling.seed or 0,
        position=position,
        draw=draw,
        allowed=None if mask is None else allowed_tokens(mask, len(logits)),
    )
    if token == NO_TOKEN:
        return None, f"no token may follow position {position}: what the request allows leaves none"
    return token, None


def sample_by_plugin(
    logits: np.ndarray, sampler: HostSampler, position: int, mask: np.ndarray | None
) -> tuple[int | None, str | None]:
    """As ``sample_on_host``, by a plugin's sampler, which sees -inf where the mask allows no token.

    Raises PluginError where the sampler raises, or gives what is no id that it may take.
    """
    import numpy as np

    from cacheir.reference.sampling import allowed_tokens

    seen = logits[None].astype(np.float32)  # a copy: the sampler may write into it
    if mask is not None:
        seen[0, ~allowed_tokens(mask, len(logits))] = -np.inf
    try:
        assert sampler.pick is not None
        made = np.asarray(sampler.pick(seen.copy()))
    except CacheIRError:
        raise
    except Exception as error:
        raise PluginError(f"sampler {sampler.name!r} raised {type(error).__name__}: {error}") from error
    if made.shape != (1,) or made.dtype.kind not in "iu":
        raise PluginError(
            f"sampler {sampler.name!r} gave {made.dtype}{list(made.shape)} for logits [1, V]",
            hint="a sampler gives one whole number for each row",
        )
    token = int(made[0])
    if not 0 <= token < len(logits) or seen[0, token] == -np.inf:
        raise PluginError(f"sampler {sampler.name!r} picked id {token}, which may not be taken")
    return token, None


def _adjusted(logits: np.ndarray, sampling: SamplingParams, ids: Sequence[int], draw: int) -> np.ndarray:
    from cacheir.reference.penalties import penalised

    prompt = len(ids) - draw
    return penalised(
        logits,
        prompt=ids[:prompt],
        answer=ids[prompt:],
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        bias=dict(sampling.logit_bias),
        allowed=sampling.allowed_ids,
        barred=sampling.stop_ids if draw < sampling.min_tokens else (),
    )


def _processed(stage: LogitsStage, ids: Sequence[int], logits: np.ndarray) -> np.ndarray:
    import numpy as np

    name = repr(stage.name) if isinstance(stage, ProcessorStage) else type(stage).__name__
    try:
        made = np.asarray(stage.process(tuple(ids), logits.astype(np.float32)))
    except CacheIRError:
        raise
    except Exception as error:
        raise PluginError(f"logits processor {name} raised {type(error).__name__}: {error}") from error
    if made.shape != logits.shape or made.dtype.kind != "f":
        raise PluginError(f"logits processor {name} gave {made.dtype}{list(made.shape)} for f32 {list(logits.shape)}")
    return made


def _not_finite(logits: np.ndarray, position: int) -> str:
    """The sentence about a model's logits that are no numbers, "" for sound ones."""
    import numpy as np

    sound = np.isfinite(logits)
    if sound.all():
        return ""
    bad = int(np.flatnonzero(~sound)[0])
    return f"the logits after position {position} are not finite, from id {bad} on ({logits[bad]})"
