"""Steps before an object is validated by its structural schema: defaults are filled in, unknown fields dropped."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from kai_apiserver.objects import Object

Schema = dict[str, Any]

#: Fields of every object that no schema has to name.
_ALWAYS = ("apiVersion", "kind", "metadata")
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"


def prune(obj: Object, schema: Schema) -> list[str]:
    """Drop fields that the schema does not know, in place; return their paths."""
    dropped: list[str] = []
    _prune(obj, schema, "", dropped, embedded=True)
    return dropped


def _prune(value: Any, schema: Schema, path: str, dropped: list[str], *, embedded: bool) -> None:
    if isinstance(value, list):
        items = schema.get("items")
        for index, item in enumerate(value):
            if isinstance(items, dict):
                _prune(item, items, f"{path}[{index}]", dropped, embedded=bool(items.get(_EMBEDDED)))
        return
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    preserve = bool(schema.get(_PRESERVE)) or additional is True
    for key in list(value):
        below = f"{path}.{key}" if path else key
        if embedded and key in _ALWAYS:
            continue
        schema_of_key = properties.get(key)
        if schema_of_key is None and isinstance(additional, dict):
            schema_of_key = additional
        if schema_of_key is not None:
            _prune(value[key], schema_of_key, below, dropped, embedded=bool(schema_of_key.get(_EMBEDDED)))
        elif not preserve:
            del value[key]
            dropped.append(below)


def apply_defaults(value: Any, schema: Schema) -> None:
    """Fill in defaults, in place: where a field is absent, or null though it may not be."""
    if isinstance(value, dict):
        properties: dict[str, Schema] = schema.get("properties") or {}
        for key, below in properties.items():
            if "default" in below and (key not in value or (value[key] is None and not below.get("nullable"))):
                value[key] = deepcopy(below["default"])
        additional = schema.get("additionalProperties")
        for key, item in value.items():
            schema_of_key = properties.get(key) or (additional if isinstance(additional, dict) else None)
            if schema_of_key is not None:
                apply_defaults(item, schema_of_key)
    elif isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for item in value:
                apply_defaults(item, items)


def drop_nulls(value: Any, schema: Schema) -> None:
    """Drop nulls that were given for fields which may not be null and have no default, in place."""
    if isinstance(value, dict):
        properties: dict[str, Schema] = schema.get("properties") or {}
        for key, below in properties.items():
            if key in value and value[key] is None and not below.get("nullable") and "default" not in below:
                del value[key]
            elif key in value:
                drop_nulls(value[key], below)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            drop_nulls(item, schema["items"])


def walk(schema: Schema) -> Iterator[Schema]:
    """The schema and every schema inside it that an object's values can lie under."""
    yield schema
    for below in (schema.get("properties") or {}).values():
        yield from walk(below)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key])
