"""How a request picks its tokens and where it stops: parameters and checks; the arithmetic is in reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from operator import attrgetter
from typing import Any

from cacheir.errors import RequestError
from cacheir.quick_dataclass import dataclass
from cacheir.runtime.checked_text import check_text

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 100
MAX_REPETITION_PENALTY = 100.0
MIN_REPETITION_PENALTY = 0.01  # what logits are divided by: far below it they are no longer finite
MAX_BIASES = 1024
MAX_PROCESSORS = 16
MAX_TOP_K = 2**31 - 1  # more than any vocabulary; executors count tokens in i32

# Below this a temperature cannot be told from 0 in float32 once logits are divided by it.
MIN_TEMPERATURE = 1e-4
MAX_TEMPERATURE = 100.0

# Of a field's value and all of them: what is kept of it, or a RequestError.
Check = Callable[[Any, "SamplingParams"], Any]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """One request's sampling, checked when it is made; a bad value raises ``RequestError`` that names the field.

    ``temperature`` 0 is greedy: the highest logit, the lowest id among equals. ``top_k`` 0, ``top_p`` 1 and ``min_p``
    0 are off. ``seed`` None asks for a fresh one at admission; a seeded request gets the same tokens whatever runs
    beside it, since random numbers are a function of the seed, the position and the draw alone. ``max_tokens`` counts
    sampled tokens, the ending one included; None means as many as the context holds. ``stop`` are strings that end
    the text before themselves, ``stop_ids`` tokens that end it; with ``ignore_eos`` the model's own ending ids are
    ordinary tokens, ``stop_ids`` still count. ``sampler`` names a plugin's ``SamplerSpec``, which then picks the tokens
    on the host in place of core's rule; what it makes of the other fields is its own. ``logits_processors`` are names
    of ``LogitsProcessorSpec``, which change the logits one after another before a token is picked. ``logprobs`` asks
    for the logarithm of each token's probability and for that many of the likeliest tokens, before filters; None for
    none.

    The rest is done on the host (``on_host``), as ``reference/penalties.py`` defines it: ``typical_p`` 1 is off,
    ``repetition_penalty`` 1, the others 0; ``logit_bias`` are pairs of an id and what is added to its logit (a mapping
    is taken too); of ``allowed_ids`` one is picked, None allows all; an ending token is barred before ``min_tokens``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampler: str = ""
    logits_processors: tuple[str, ...] = ()
    logprobs: int | None = None
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: tuple[int, ...] | None = None
    min_tokens: int = 0

    def __post_init__(self) -> None:
        for name, default in _DEFAULTS:
            value = getattr(self, name)
            if value is not default:  # which needs no look: a request is between a client and its first token
                object.__setattr__(self, name, _CHECKS[name](value, self))

    def admitted(self, *, max_tokens: int, seed: int, stop_ids: tuple[int, ...]) -> SamplingParams:
        """With these three, which admission has made and checked. Nothing else is checked, or worked out, again."""
        made = object.__new__(SamplingParams)
        made.__dict__.update(self.__dict__, max_tokens=max_tokens, seed=seed, stop_ids=stop_ids)
        return made

    @cached_property
    def greedy(self) -> bool:
        """Whether the highest logit wins, so that no random number is drawn."""
        return self.temperature == 0 and not self.by_plugins

    @property
    def by_plugins(self) -> bool:
        """Whether plugins pick the tokens or change their logits."""
        return bool(self.sampler or self.logits_processors)

    @cached_property
    def on_host(self) -> bool:
        """Whether tokens are picked from logits on the host, since no head of an executor gives what is asked."""
        return self.logprobs is not None or self.by_plugins or self.typical_p < 1 or self.adjusts

    @property
    def all_but_seed(self) -> tuple[Any, ...]:
        """Every other field's value: equal where no more than the seed may differ."""
        return _ALL_BUT_SEED(self)

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before they are sampled."""
        return (
            self.repetition_penalty != 1
            or bool(self.presence_penalty or self.frequency_penalty or self.logit_bias or self.min_tokens)
            or self.allowed_ids is not None
        )


_ALL_BUT_SEED = attrgetter(*(field.name for field in fields(SamplingParams) if field.name != "seed"))
_DEFAULTS = tuple((field.name, field.default) for field in fields(SamplingParams))


def _temperature(value: Any, _: SamplingParams) -> Any:
    _check_number("temperature", value, 0.0, MAX_TEMPERATURE)
    if 0 < value < MIN_TEMPERATURE:
        raise RequestError(
            f"temperature {value!r} is too small to be told from 0", hint="use 0, which takes the likeliest token"
        )
    return value


def _flag(value: Any, _: SamplingParams) -> Any:
    if not isinstance(value, bool):
        raise RequestError(f"ignore_eos must be true or false, not {value!r}")
    return value


def _name(value: Any, _: SamplingParams) -> Any:
    if not isinstance(value, str):
        raise RequestError(f"sampler must be a name, not {value!r}")
    return value


def _allowed(value: Any, _: SamplingParams) -> tuple[int, ...]:
    ids = _ids("allowed_ids", value)
    if not ids:
        raise RequestError("allowed_ids is empty, so no token could be picked")
    return ids


def _number(name: str, low: float, high: float, *, zero: bool = True) -> Check:
    """A check that gives back the number ``name`` where it lies within."""

    def check(value: Any, _: SamplingParams) -> Any:
        _check_number(name, value, low, high, zero=zero)
        return value

    return check


def _integer(name: str, low: int, high: int | None = None) -> Check:
    """The same for an integer."""

    def check(value: Any, _: SamplingParams) -> Any:
        _check_integer(name, value, low, high)
        return value

    return check


def _top_k(value: Any, _: SamplingParams) -> int:
    _check_integer("top_k", value, 0, None)
    return min(int(value), MAX_TOP_K)


def _min_tokens(value: Any, params: SamplingParams) -> Any:
    _check_integer("min_tokens", value, 0, params.max_tokens)
    return value


# Field -> what is kept of a value that is not the default.
_CHECKS: dict[str, Check] = {
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _number("top_p", 0.0, 1.0, zero=False),
    "min_p": _number("min_p", 0.0, 1.0),
    "seed": _integer("seed", 0, MAX_SEED),
    "max_tokens": _integer("max_tokens", 1),
    "stop": lambda value, _: _stop_strings(value),
    "stop_ids": lambda value, _: _ids("stop_ids", value),
    "ignore_eos": _flag,
    "sampler": _name,
    "logits_processors": lambda value, _: _names("logits_processors", value),
    "logprobs": _integer("logprobs", 0, MAX_LOGPROBS),
    "typical_p": _number("typical_p", 0.0, 1.0, zero=False),
    "repetition_penalty": _number("repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    "presence_penalty": _number("presence_penalty", -2.0, 2.0),
    "frequency_penalty": _number("frequency_penalty", -2.0, 2.0),
    "logit_bias": lambda value, _: _logit_bias(value),
    "allowed_ids": _allowed,
    "min_tokens": _min_tokens,
}


def _check_number(name: str, value: Any, low: float, high: float, *, zero: bool = True) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, not {value!r}")
    # Written so that NaN, which compares false with everything, is refused too.
    if not (low <= value <= high and (zero or value > low)):
        limits = f"from {low:g} to {high:g}" if zero else f"above {low:g} and at most {high:g}"
        raise RequestError(f"{name} must be {limits}, not {value!r}")


def _check_integer(name: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r}")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be {limits}, not {value}")


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else _sequence("stop", value)
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop holds {len(strings)} strings, more than the {MAX_STOP_STRINGS} allowed")
    for index, string in enumerate(strings):
        check_text(f"stop[{index}]", string)
        if not string:
            raise RequestError(f"stop[{index}] is empty, so it would stop every text at once")
        if len(string) > MAX_STOP_CHARACTERS:
            raise RequestError(f"stop[{index}] has {len(string)} characters, more than {MAX_STOP_CHARACTERS}")
    return tuple(dict.fromkeys(strings))


def _names(name: str, value: Any) -> tuple[str, ...]:
    names = _sequence(name, value)
    if len(names) > MAX_PROCESSORS:
        raise RequestError(f"{name} holds {len(names)} names, more than the {MAX_PROCESSORS} allowed")
    for index, one in enumerate(names):
        if not isinstance(one, str) or not one:
            raise RequestError(f"{name}[{index}] must be a name, not {one!r}")
    return names


def _ids(name: str, value: Any) -> tuple[int, ...]:
    for index, token in enumerate(_sequence(name, value)):
        _check_integer(f"{name}[{index}]", token, 0, 2**31 - 1)
    return tuple(sorted(set(value)))


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = tuple(value.items()) if isinstance(value, Mapping) else _sequence("logit_bias", value)
    if len(pairs) > MAX_BIASES:
        raise RequestError(f"logit_bias has {len(pairs)} entries, more than the {MAX_BIASES} allowed")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise RequestError(f"logit_bias must map token ids to numbers, and {pair!r} is no such pair")
        _check_integer("logit_bias", pair[0], 0, 2**31 - 1)
        _check_number(f"logit_bias[{pair[0]}]", pair[1], -100.0, 100.0)
    return tuple(sorted({token: float(amount) for token, amount in pairs}.items()))


def _sequence(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list, set, frozenset)):
        raise RequestError(f"{name} must be a list, not {value!r}")
    return tuple(value)
