"""How a field of a request is declared: its default, its bounds, and whether it is honoured or ignored."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

CONTRACT = "x-cacheir"


class Body(BaseModel):
    """A request body. Types are taken by the letter, and a field that is not declared is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


def honoured(default: Any = None, description: str = "", **bounds: Any) -> Any:
    """A field that does what it says."""
    return Field(default, description=description or None, json_schema_extra={CONTRACT: "honoured"}, **bounds)


def ignored(description: str) -> Any:
    """A field that is taken and changes nothing; ``description`` says why that is no lie."""
    return Field(None, description=description, json_schema_extra={CONTRACT: "ignored"})
