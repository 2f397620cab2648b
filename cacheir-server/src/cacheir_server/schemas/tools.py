"""The fields of tools: what may be called, and whether it must be."""

from __future__ import annotations

from typing import Any, Literal

from cacheir_server.schemas.field import Body, honoured, ignored


class Function(Body):
    """A function that the model may call; ``parameters`` is the JSON schema of its arguments."""

    name: str = honoured(..., min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = honoured(None)
    parameters: dict[str, Any] | None = honoured(None)
    strict: bool | None = ignored("Where a call is demanded its schema is always enforced in full, or refused.")


class Tool(Body):
    """A tool; of OpenAI's kinds there are functions alone."""

    type: Literal["function"] = honoured(...)
    function: Function = honoured(...)


class NamedFunction(Body):
    """The name of a function."""

    name: str = honoured(...)


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"] = honoured(...)
    function: NamedFunction = honoured(...)
