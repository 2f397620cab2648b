"""How a server is run: every limit in one place, with its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """``model_name`` is what requests call the model. ``api_keys`` () lets anyone in.

    ``queue_wait_s`` is how long a request that finds the queue full waits for room before it is refused (0: not at
    all). ``stall_s`` is how long a step may take before ``/health`` says 503. ``body_timeout_s`` bounds the reading of
    a body, ``drain_s`` how long a server that was told to stop waits for answers under way. ``tool_parser`` "" goes by
    the model's chat template.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_choices: int = 16
    max_batch_prompts: int = 64
    queue_wait_s: float = 0.0
    stall_s: float = 30.0
    body_timeout_s: float = 30.0
    drain_s: float = 30.0
    default_max_tokens: int = 1024
    tool_parser: str = ""
