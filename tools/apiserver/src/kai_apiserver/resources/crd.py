"""CustomResourceDefinitions: their own defaults, validation and conditions, and the resources they make.

A custom resource is checked against its structural schema, in the words of the API server. Before that, defaults are
filled in and unknown fields dropped.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from datetime import datetime
from functools import lru_cache
from typing import Any

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds.rules import Cluster
from kai_apiserver.objects import Object, encode_json, timestamp
from kai_apiserver.resources.registry import STATUS_VERBS, ResourceType, SelectableField, Subresource

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
    """The problems of `value`; `path` is its place."""
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
        yield FieldError.not_supported(path, value, supported)
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
    return FieldError("FieldValueTypeInvalid", path or "<nil>", value=actual, detail=detail)


def _object_errors(value: dict[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    properties = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for name in schema.get("required") or ():
        if name not in value:
            yield FieldError.required(f"{path}.{name}" if path else name)
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if least is not None and len(value) < least:
        yield _invalid(path, f"should have at least {least} properties", value)
    if most is not None and len(value) > most:
        yield FieldError("FieldValueTooMany", path, value=len(value), detail=f"must have at most {most} items")
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
        yield FieldError("FieldValueTooMany", path, value=len(value), detail=f"must have at most {most} items")
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
        yield FieldError.invalid(path or "<nil>", value, f'"{path}" must validate at least one schema (anyOf)')
    if one_of and sum(not validate_schema(value, below, path) for below in one_of) != 1:
        yield FieldError.invalid(path or "<nil>", value, f'"{path}" must validate one and only one schema (oneOf)')
    excluded = schema.get("not")
    if excluded is not None and not validate_schema(value, excluded, path):
        yield FieldError.invalid(path or "<nil>", value, f'"{path}" must not validate the schema (not)')


def _invalid(path: str, what: str, value: Any) -> FieldError:
    return FieldError.invalid(path, value, f"{path} in body {what}")


DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"

#: What an API server says of the rules (`x-kubernetes-validations`) of an object that the schema refuses already.
_UNCHECKED = FieldError.invalid(
    "<nil>",
    None,
    "some validation rules were not checked because the object was invalid; correct the existing errors to "
    "complete validation",
)


class CustomVersion:
    """A served version's effect on objects of a custom resource.

    Attributes:
        schema: its structural schema.
        columns: `additionalPrinterColumns`.
        rules: how many `x-kubernetes-validations` it has; they are not evaluated.
    """

    def __init__(self, version: Object) -> None:
        self.schema: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }
        self.rules = sum(len(below.get("x-kubernetes-validations") or ()) for below in walk(self.schema))
        self.columns: list[Object] = list(version.get("additionalPrinterColumns") or ())

    def read(self, obj: Object) -> list[str]:
        """Prune, drop meaningless nulls and fill in defaults, in place; return the paths that were pruned."""
        dropped = prune(obj, self.schema)
        drop_nulls(obj, self.schema)
        apply_defaults(obj, self.schema)
        return dropped

    def validate(self, obj: Object) -> list[FieldError]:
        """The problems of an object."""
        errors = validate_schema(obj, self.schema)
        return [*errors, _UNCHECKED] if errors and self.rules else errors


def _path(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(".")))


def default_definition(definition: Object) -> None:
    """Fill in what a definition leaves out."""
    names = definition["spec"].get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    definition["spec"].setdefault("conversion", {"strategy": "None"})


def admit_definition(definition: Object, cluster: Cluster) -> None:
    """A new definition is not established yet."""
    del cluster
    stored = [version["name"] for version in definition["spec"].get("versions") or () if version.get("storage")]
    definition["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored,
    }


def validate_definition(definition: Object) -> list[FieldError]:
    """The problems of a definition, as far as this server depends on it."""
    spec, errors = definition["spec"], []
    names = spec.get("names") or {}
    wanted = f"{names.get('plural')}.{spec.get('group')}"
    if definition["metadata"]["name"] != wanted:
        errors.append(
            FieldError.invalid(
                "metadata.name", definition["metadata"]["name"], 'must be spec.names.plural+"."+spec.group'
            )
        )
    errors += [FieldError.required(f"spec.names.{part}") for part in ("plural", "kind") if not names.get(part)]
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        errors.append(FieldError.not_supported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced")))
    versions = spec.get("versions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(
            FieldError.invalid("spec.versions", versions, "must have exactly one version marked as storage version")
        )
    for index, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        field = f"spec.versions[{index}].schema.openAPIV3Schema"
        if schema is None:
            errors.append(FieldError.required(field, "schemas are required"))
        elif schema.get("type") != "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
            errors.append(FieldError.required(f"{field}.type", "must not be empty at the root"))
    return errors


def reservations(definition: Object) -> list[str]:
    """The features of a definition that this server accepts and does not have."""
    sentences = []
    if (definition["spec"].get("conversion") or {}).get("strategy") == "Webhook":
        sentences.append("conversion webhooks are not called: between versions only apiVersion changes")
    sentences += [
        f"x-kubernetes-validations are not evaluated: {resource.custom.rules} of version {resource.version}"
        for resource in resources_of(definition)
        if resource.custom.rules
    ]
    return sentences


def establish(definition: Object, now: datetime) -> None:
    """Accept the names and mark the definition as established, in place."""
    spec, moment = definition["spec"], timestamp(now)
    definition["status"]["acceptedNames"] = dict(spec["names"])
    stored = definition["status"].get("storedVersions") or []
    fresh = [
        version["name"] for version in spec["versions"] if version.get("storage") and version["name"] not in stored
    ]
    definition["status"]["storedVersions"] = [*stored, *fresh]
    if not definition["status"].get("conditions"):
        definition["status"]["conditions"] = [
            {
                "type": "NamesAccepted",
                "status": "True",
                "lastTransitionTime": moment,
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": moment,
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ]


def resources_of(definition: Object) -> list[ResourceType]:
    """The resource types that a definition makes, one per served version, the stored version first."""
    spec: dict[str, Any] = definition["spec"]
    names = spec["names"]
    versions = sorted(
        (version for version in spec["versions"] if version.get("served")),
        key=lambda version: not version.get("storage"),
    )
    return [
        ResourceType(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            singular=names.get("singular") or names["kind"].lower(),
            kind=names["kind"],
            list_kind=names.get("listKind", ""),
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=_subresources(version, names["kind"]),
            generation=True,
            selectable=tuple(
                SelectableField(item["jsonPath"].lstrip("."), _path(item["jsonPath"]))
                for item in version.get("selectableFields") or ()
            ),
            custom=CustomVersion(version),
        )
        for version in versions
    ]


def _subresources(version: Object, kind: str) -> tuple[Subresource, ...]:
    return (Subresource("status", kind, STATUS_VERBS),) if "status" in (version.get("subresources") or {}) else ()
