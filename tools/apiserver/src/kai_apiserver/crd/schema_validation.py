"""Check a value against a structural schema, in the words of the API server."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from kai_apiserver.crd.structural import Schema
from kai_apiserver.errors import FieldError
from kai_apiserver.objects import encode_json

_TYPE_NAMES: dict[type, str] = {
    bool: "boolean",
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    float: "number",
    type(None): "null",
}


def validate_schema(value: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """What is wrong with `value`; `path` is where it stands."""
    return list(_errors(value, schema, path))


def _errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    if value is None and schema.get("nullable"):
        return
    mismatch = _type_error(value, schema, path)
    if mismatch is not None:
        yield mismatch
        return
    choices = schema.get("enum")
    if choices is not None and value not in choices:
        supported = tuple(choice if isinstance(choice, str) else encode_json(choice).decode() for choice in choices)
        yield FieldError("FieldValueNotSupported", path, value=value, supported=supported)
    if isinstance(value, dict):
        yield from _object_errors(value, schema, path)
    elif isinstance(value, list):
        yield from _list_errors(value, schema, path)
    elif isinstance(value, str):
        yield from _string_errors(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_errors(value, schema, path)
    yield from _combination_errors(value, schema, path)


def _type_error(value: Any, schema: Schema, path: str) -> FieldError | None:
    actual = _TYPE_NAMES[type(value)]
    if schema.get("x-kubernetes-int-or-string"):
        wanted, fits = "integer,string", actual in ("integer", "string")
    else:
        wanted = schema.get("type", "")
        fits = (
            not wanted
            or actual == wanted
            or (wanted == "number" and actual == "integer")
            or (wanted == "integer" and isinstance(value, float) and value.is_integer())
        )
    if fits:
        return None
    detail = f'{path or "<nil>"} in body must be of type {wanted}: "{actual}"'
    return FieldError("FieldValueTypeInvalid", path or "<nil>", detail=detail, value=actual)


def _object_errors(value: dict[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    properties = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for name in schema.get("required") or ():
        if name not in value:
            yield FieldError("FieldValueRequired", f"{path}.{name}" if path else name)
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if least is not None and len(value) < least:
        yield _invalid(path, f"should have at least {least} properties", value)
    if most is not None and len(value) > most:
        yield FieldError("FieldValueTooMany", path, detail=f"must have at most {most} items", value=len(value))
    for name, item in value.items():
        below = properties.get(name)
        if below is None and isinstance(additional, dict):
            below = additional
        if below is not None:
            yield from _errors(item, below, f"{path}.{name}" if path else name)


def _list_errors(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is not None and len(value) < least:
        yield _invalid(path, f"should have at least {least} items", value)
    if most is not None and len(value) > most:
        yield FieldError("FieldValueTooMany", path, detail=f"must have at most {most} items", value=len(value))
    kind = schema.get("x-kubernetes-list-type")
    if kind in ("map", "set"):
        keys = schema.get("x-kubernetes-list-map-keys") or ()
        seen: list[Any] = []
        for index, item in enumerate(value):
            identity = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
            if identity in seen:
                yield FieldError("FieldValueDuplicate", f"{path}[{index}]", value=identity)
            seen.append(identity)
    items = schema.get("items")
    if isinstance(items, dict):
        for index, item in enumerate(value):
            yield from _errors(item, items, f"{path}[{index}]")


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text)
    except re.error:
        return None  # a pattern that only Go understands constrains nothing here


def _string_errors(value: str, schema: Schema, path: str) -> Iterator[FieldError]:
    least, most, pattern = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if least is not None and len(value) < least:
        yield _invalid(path, f"should be at least {least} chars long", value)
    if most is not None and len(value) > most:
        yield FieldError("FieldValueTooLong", path, detail=f"may not be more than {most} bytes")
    if pattern is not None:
        compiled = _pattern(pattern)
        if compiled is not None and not compiled.search(value):
            yield _invalid(path, f"should match '{pattern}'", value)


def _number_errors(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    least, most, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if least is not None:
        if schema.get("exclusiveMinimum") and value <= least:
            yield _invalid(path, f"should be greater than {least}", value)
        elif value < least:
            yield _invalid(path, f"should be greater than or equal to {least}", value)
    if most is not None:
        if schema.get("exclusiveMaximum") and value >= most:
            yield _invalid(path, f"should be less than {most}", value)
        elif value > most:
            yield _invalid(path, f"should be less than or equal to {most}", value)
    if step and value % step:
        yield _invalid(path, f"should be a multiple of {step}", value)


def _combination_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    for below in schema.get("allOf") or ():
        yield from _errors(value, below, path)
    any_of, one_of = schema.get("anyOf"), schema.get("oneOf")
    if any_of and all(validate_schema(value, below, path) for below in any_of):
        yield FieldError(
            "FieldValueInvalid",
            path or "<nil>",
            detail=f'"{path}" must validate at least one schema (anyOf)',
            value=value,
        )
    if one_of and sum(not validate_schema(value, below, path) for below in one_of) != 1:
        yield FieldError(
            "FieldValueInvalid",
            path or "<nil>",
            detail=f'"{path}" must validate one and only one schema (oneOf)',
            value=value,
        )
    excluded = schema.get("not")
    if excluded is not None and not validate_schema(value, excluded, path):
        yield FieldError(
            "FieldValueInvalid", path or "<nil>", detail=f'"{path}" must not validate the schema (not)', value=value
        )


def _invalid(path: str, what: str, value: Any) -> FieldError:
    return FieldError("FieldValueInvalid", path, detail=f"{path} in body {what}", value=value)
