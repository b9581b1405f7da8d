"""Names, namespaces and uids of the objects of a world: their own, and generated ones for objects without."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from kaicore.errors import InvalidObject
from kaicore.rules.objects.mappings import Object, derived_uid, suffix
from kaicore.rules.objects.wire import subject_of

#: Group and kind.
GroupKind = tuple[str, str]

_encoder = msgspec.json.Encoder(order="deterministic")


class Located(NamedTuple):
    """An object, and where it was found, for errors: `a.yaml, document 2`."""

    where: str
    object: Object


def located(where: str, error: InvalidObject) -> InvalidObject:
    """Return an error that says where its object was found."""
    return InvalidObject(f"{where}: {error.subject}", error.field, error.value, error.problem)


class Identities:
    """The identities of a world's objects.

    Attributes:
        problems: objects without a name, and those that are there twice.
        seen: the first object of each group, kind, namespace and name.
    """

    def __init__(self) -> None:
        self.problems: list[InvalidObject] = []
        self.seen: dict[tuple[str, str, str, str], Located] = {}
        self._uids: dict[str, Located] = {}

    def identify(
        self, objects: list[tuple[GroupKind, Located]], is_namespaced: Callable[[GroupKind], bool]
    ) -> list[tuple[GroupKind, Located]]:
        """Give each object the name, namespace and uid that it lacks; in order of kind, namespace and name."""
        named: list[tuple[GroupKind, Located]] = []
        nameless: list[tuple[GroupKind, Located]] = []
        for kind, item in objects:
            try:
                metadata = _metadata(item.object, namespaced=is_namespaced(kind))
            except InvalidObject as error:
                self.problems.append(located(item.where, error))
                continue
            whole = Located(item.where, {**item.object, "metadata": metadata})
            (named if metadata.get("name") else nameless).append((kind, whole))
        ordinals: Counter[tuple[str, str, str]] = Counter()
        # Two of one generateName are distinguished by what they say, then by number.
        for kind, item in sorted(nameless, key=lambda one: (one[0], _content(one[1].object))):
            metadata = item.object["metadata"]
            base = (kind[1], metadata["namespace"], metadata["generateName"])
            ordinals[base] += 1
            metadata["name"] = metadata["generateName"] + suffix(*base, str(ordinals[base]))
            named.append((kind, item))
        unique = []
        for kind, item in sorted(named, key=_order):
            metadata = item.object["metadata"]
            metadata["uid"] = metadata.get("uid") or derived_uid(*kind, metadata["namespace"], metadata["name"])
            key = (*kind, metadata["namespace"], metadata["name"])
            if self._is_second(item, "name", self.seen.setdefault(key, item)):
                continue
            if self._is_second(item, "uid", self._uids.setdefault(metadata["uid"], item)):
                continue
            unique.append((kind, item))
        return unique

    def _is_second(self, item: Located, field_: str, first: Located) -> bool:
        """True if another object with this name or uid was found first, which is a problem."""
        if first is item:
            return False
        metadata = item.object["metadata"]
        subject = subject_of(item.object["kind"], metadata["namespace"], metadata["name"])
        problem = InvalidObject(subject, f"metadata.{field_}", metadata[field_], f"is there already, in {first.where}")
        self.problems.append(located(item.where, problem))
        return True


def _metadata(wire: Object, *, namespaced: bool) -> Object:
    metadata = wire.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise InvalidObject(wire["kind"], "metadata.name", metadata, "is missing")
    metadata = dict(metadata)
    subject = f"{wire['kind']} {metadata.get('name') or metadata.get('generateName')}"
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        value = metadata.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidObject(subject, f"metadata.{name}", value, "must be a text")
    metadata["namespace"] = (metadata.get("namespace") or "default") if namespaced else ""
    return metadata


def _content(wire: Object) -> bytes:
    return _encoder.encode(wire)


def _order(one: tuple[GroupKind, Located]) -> tuple[GroupKind, str, str, str]:
    kind, item = one
    return kind, item.object["metadata"]["namespace"], item.object["metadata"]["name"], item.where
