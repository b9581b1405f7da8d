"""The shape of a value as server-side apply sees it: what is merged inside, and what is owned as a whole.

Built-in types take it from their tables, custom resources from their schema; apply itself asks only this.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from kaicore.kube.wire.builtin_fields import SCALARS, TYPES, element

from kai_apiserver.types.merging import ATOMIC, KEY_DEFAULTS, SETS, apply_keys


class Shape(Protocol):
    """How values at one place of an object merge."""

    @property
    def atomic(self) -> bool:
        """Owned and replaced as a whole."""

    @property
    def keys(self) -> tuple[str, ...] | None:
        """For a list: the fields that identify an element."""

    @property
    def is_set(self) -> bool:
        """For a list: whether it is a set of scalars."""

    def key_default(self, key: str) -> Any:
        """What stands for an identifying field that an element leaves out."""

    def child(self, field: str) -> "Shape":
        """The shape of a member of a map or struct."""

    def item(self) -> "Shape":
        """The shape of an element of a list."""


@dataclass(frozen=True, slots=True)
class BuiltinShape:
    """Shape of a value of a built-in type: the notation of its type, and the `Type.field` where it stands."""

    notation: str
    place: str = ""

    @property
    def atomic(self) -> bool:
        """Owned and replaced as a whole."""
        return self.notation in ATOMIC or self.place in ATOMIC

    @property
    def keys(self) -> tuple[str, ...] | None:
        """For a list: the fields that identify an element."""
        return apply_keys(self.place)

    @property
    def is_set(self) -> bool:
        """For a list: whether it is a set of scalars."""
        return self.place in SETS

    def key_default(self, key: str) -> Any:
        """What stands for an identifying field that an element leaves out."""
        return KEY_DEFAULTS.get(key)

    def child(self, field: str) -> "BuiltinShape":
        """The shape of a member of a map or struct."""
        if self.notation.startswith("{}"):
            return BuiltinShape(self.notation[2:])
        described = TYPES.get(self.notation) if self.notation not in SCALARS else None
        if described is None:
            return BuiltinShape("any")
        return BuiltinShape(described.fields.get(field, "any"), f"{self.notation}.{field}")

    def item(self) -> "BuiltinShape":
        """The shape of an element of a list."""
        return BuiltinShape(element(self.notation))


@dataclass(frozen=True, slots=True)
class CustomShape:
    """Shape of a value of a custom resource: its schema, or {} where that says nothing."""

    schema: dict[str, Any]

    @property
    def atomic(self) -> bool:
        """Owned and replaced as a whole."""
        return self.schema.get("x-kubernetes-map-type") == "atomic"

    @property
    def keys(self) -> tuple[str, ...] | None:
        """For a list: the fields that identify an element."""
        if self.schema.get("x-kubernetes-list-type") == "map":
            return tuple(self.schema.get("x-kubernetes-list-map-keys") or ())
        return None

    @property
    def is_set(self) -> bool:
        """For a list: whether it is a set of scalars."""
        return self.schema.get("x-kubernetes-list-type") == "set"

    def key_default(self, key: str) -> Any:
        """What stands for an identifying field that an element leaves out."""
        items = self.schema.get("items") or {}
        return ((items.get("properties") or {}).get(key) or {}).get("default")

    def child(self, field: str) -> "Shape":
        """The shape of a member of a map or struct."""
        if field == "metadata" and "properties" in self.schema and "kind" in self.schema["properties"]:
            return BuiltinShape("V1ObjectMeta")
        properties = self.schema.get("properties") or {}
        additional = self.schema.get("additionalProperties")
        return CustomShape(properties.get(field) or (additional if isinstance(additional, dict) else {}))

    def item(self) -> "Shape":
        """The shape of an element of a list."""
        return CustomShape(self.schema.get("items") or {})
