"""Sampling on the host from an executor's logits: where no head samples within a mask, and by a plugin's sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacheir.errors import CacheIRError, PluginError
from cacheir.plugins.ref import resolve
from cacheir.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np

    from cacheir.plugins.installation import Installation


@dataclass(frozen=True)
class HostSampler:
    """What the plugin's sampler ``name`` made for one answer: ``pick`` takes logits f32 [1, V] to ids [1]."""

    name: str
    pick: Callable[[np.ndarray], Any]


def open_sampler(params: SamplingParams, installation: Installation) -> HostSampler | None:
    """The sampler that ``params`` names, made for one answer; None where core's rule picks the tokens.

    Raises UsageError for a name that no plugin registers, PluginError where the sampler cannot be made.
    """
    if not params.sampler:
        return None
    spec = installation.samplers[params.sampler]
    try:
        return HostSampler(spec.name, resolve(spec.factory)(params))
    except CacheIRError:
        raise
    except Exception as error:
        raise PluginError(f"sampler {spec.name!r} raised {type(error).__name__}: {error}") from error


def sample_on_host(
    logits: np.ndarray, sampling: SamplingParams, position: int, draw: int, mask: np.ndarray | None
) -> tuple[int | None, str | None]:
    """The token for ``logits`` f32 [V], or the sentence that says why there is none.

    ``position`` is that of the last token fed, as in every executor, so that both ways draw the same numbers.
    """
    from cacheir.reference.sampling import NO_TOKEN, allowed_tokens, sample_row

    if fault := _not_finite(logits, position):
        return None, fault
    token = sample_row(
        logits,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed or 0,
        position=position,
        draw=draw,
        allowed=None if mask is None else allowed_tokens(mask, len(logits)),
    )
    return (None, "the mask allows no token") if token == NO_TOKEN else (token, None)


def sample_by_plugin(
    logits: np.ndarray, sampler: HostSampler, position: int, mask: np.ndarray | None
) -> tuple[int | None, str | None]:
    """As ``sample_on_host``, by a plugin's sampler, which sees -inf where the mask allows no token.

    Raises PluginError where the sampler raises, or gives what is no id that it may take.
    """
    import numpy as np

    from cacheir.reference.sampling import allowed_tokens

    if fault := _not_finite(logits, position):
        return None, fault
    seen = logits[None].astype(np.float32)  # a copy: the sampler may write into it
    if mask is not None:
        seen[0, ~allowed_tokens(mask, len(logits))] = -np.inf
    try:
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


def _not_finite(logits: np.ndarray, position: int) -> str:
    """The sentence about logits that are no numbers, "" for sound ones."""
    import numpy as np

    sound = np.isfinite(logits)
    if sound.all():
        return ""
    bad = int(np.flatnonzero(~sound)[0])
    return f"the logits after position {position} are not finite, from id {bad} on ({logits[bad]})"
