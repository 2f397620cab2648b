"""What the engine counts, for ``/metrics`` and reports: sums only ever rise, the rest is read off the queues."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class EngineCounters:
    """Sums since the engine was made. Times are seconds; ``requests`` is by outcome, ``refused`` by reason.

    ``aged_admissions`` went ahead of one with a higher priority, since they had waited longer.
    ``recomputed_tokens`` had keys and values before a preemption, and neither the prefix index nor the host had kept
    them when their request came back. ``preemptions`` are by kind: with ``spill`` what is evicted may go to the host.
    ``waits`` counts the steps after which somebody still waited, by what was short.
    """

    steps: Counter[str] = field(default_factory=Counter)  # by mode: prefill, decode, run_ahead
    requests: Counter[str] = field(default_factory=Counter)
    plans: Counter[str] = field(default_factory=Counter)  # by origin: planner.PLAN_ORIGINS
    fast_lane: Counter[str] = field(default_factory=Counter)  # plans, by planner.FAST_LANE
    refused: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)  # by kind: recompute, spill
    violations: Counter[str] = field(default_factory=Counter)  # by bound: deadline, run_ahead (a call's time)
    draft_tokens: Counter[str] = field(default_factory=Counter)  # accepted, rejected
    audits: Counter[str] = field(default_factory=Counter)  # clean, corrupt
    backpressure_waits: int = 0
    recomputed_tokens: int = 0
    deduplicated_requests: int = 0
    aged_admissions: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    discarded_tokens: int = 0
    queue_seconds: float = 0.0
    step_seconds: float = 0.0
