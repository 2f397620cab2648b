"""Bodies of requests: JSON by the letter, checked against a schema, and every fault a 400 that names the field."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from cacheir_server.errors import ApiError

# More than any field takes, and fewer than Python reads without a limit of its own.
_MOST_DIGITS = 640

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The body of ``request`` as ``model``; ``ApiError`` 400 or 415, or 499 where the client left within it."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415, f"the body must be application/json, not {kind[:60] or 'untyped'}", code="unsupported_media_type"
        )
    try:
        raw = await request.body()
    except ClientDisconnect:  # no failure of the server's: nobody is there to be answered, and its log says nothing
        raise ApiError(499, "the client left before its body was complete", code="client_closed") from None
    return parse(raw, model)


def parse(raw: bytes, model: type[Model]) -> Model:
    """``raw`` as ``model``; ``ApiError`` 400."""
    value = strict_json(raw)
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _first_fault(error) from None


def strict_json(raw: bytes) -> Any:
    """JSON as the standard has it: no NaN, no duplicate keys, no deep nesting, no lone surrogates."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8 from byte {error.start} on", code="invalid_json") from None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_no_duplicates)
        _check_text(value)
    except RecursionError:
        raise ApiError(400, "the body is nested too deep", code="invalid_json") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    return value


def _check_text(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            message = f"a string holds half of a surrogate pair at character {error.start}"
            raise ApiError(400, message, code="invalid_unicode") from None
    elif isinstance(value, list):
        for item in value:
            _check_text(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_text(name)
            _check_text(item)


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"it has an integer of {len(digits)} digits; at most {_MOST_DIGITS} are read")
    return int(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def _first_fault(error: ValidationError) -> ApiError:
    fault = error.errors(include_url=False, include_context=False, include_input=True)[0]
    place = ".".join(str(part) for part in fault["loc"] if not _is_branch(part)) or None
    if fault["type"] == "extra_forbidden":
        message = f"there is no field {place!r}, or this server does not honour it; GET /v1/cacheir/contract lists all"
        return ApiError(400, message, param=place, code="unsupported_field")
    value = repr(fault["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    text = fault["msg"][0].lower() + fault["msg"][1:]
    return ApiError(400, f"{place}: {text}, not {shown}", param=place, code="invalid_value")


def _is_branch(part: Any) -> bool:
    """Whether a part of a place is the name of a branch of a union, which no client has written."""
    return isinstance(part, str) and ("[" in part or part in {"str", "int", "float", "bool"})
