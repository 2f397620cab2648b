"""A program: the modules of all modes with their schedules, memory plans and weights. What an executor loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod

from cacheir.ir.graph import Module
from cacheir.ir.types import KVType, Type
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import GenerationDefaults, TokenizerSource, WeightSource
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class ProgramWeight:
    """One weight of the program: equal recipes of all graphs, layers and modes are one.

    ``recipe`` is the text of ``ir.weights.resolve_recipe`` and the key; ``stored`` the keys in the source table.
    """

    recipe: str
    type: Type
    stored: tuple[str, ...]

    @property
    def elements(self) -> int:
        """How many it has, however they are stored."""
        assert not isinstance(self.type, KVType), "a state is no weight"
        return prod(size.constant for size in self.type.shape)


@dataclass(frozen=True, kw_only=True)
class Program:
    """Everything a backend needs. ``groups`` are the KV groups in the order of main's states."""

    modules: Mapping[str, Module]
    schedules: Mapping[str, Schedule]
    plans: Mapping[str, MemoryPlan]
    weights: Mapping[str, ProgramWeight]  # recipe text -> weight
    sources: Mapping[str, WeightSource]  # canonical key -> place
    groups: tuple[KVType, ...]
    group_layers: tuple[tuple[int, ...], ...]  # the model's layers of each group, in the order of the pool's rows
    target: str
    backend: str
    max_seq: int
    max_rows: int
    max_tokens: int
    spec: DecoderSpec | None = None
    tokenizer: TokenizerSource | None = None
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    plan_notes: Mapping[str, object] = field(default_factory=dict)  # what a backend's own planning steps recorded

    def weight_of(self, mode: str, graph: str, weight: str, layer: int | None) -> ProgramWeight:
        """The program weight behind ``@weight`` of ``graph`` in a call for ``layer``."""
        from cacheir.ir.weights import resolve_recipe

        return self.weights[resolve_recipe(weight, dict(self.modules[mode].graph(graph).recipes), layer)]
