"""Resource types of this server, and the registry of them.

A resource type is a row of data: built-in ones are in `builtin.py`, custom ones come and go with their definitions. Two
types may share one storage (core and events.k8s.io events; versions of a custom resource), as in the real server.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kai_apiserver.errors import StatusError, path_not_found
from kai_apiserver.objects import Object

READ_WRITE = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
STATUS_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Subresource:
    """Something below an object, such as `status`.

    Attributes:
        name: `status`, `binding`, …
        kind: what is read and written there.
        group: of `kind`, where it is another than the resource's, with its `version`.
        version: see `group`.
    """

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class SelectableField:
    """A field that field selectors may name: its label, where it lies, and what its absence means."""

    label: str
    path: tuple[str, ...]
    default: str = ""


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    """One resource in one version of its group.

    Attributes:
        type_name: the built-in type of its objects; None for custom resources.
        storage: the collection that holds the objects, the same for all versions and aliases.
        generation: whether a change of the spec counts in `metadata.generation`.
        selectable: fields beyond name and namespace that field selectors may name.
        returned_when_deleted: whether DELETE answers with the object instead of a Status.
        status_on_create: whether a client may set the status when creating (nodes).
        to_storage: turns an object of this version into the stored one, where that is more than its apiVersion.
        from_storage: the way back.
        custom: the definition's version, for custom resources; see `kai_apiserver.resources.crd`.
    """

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    type_name: str | None = None
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = READ_WRITE
    subresources: tuple[Subresource, ...] = ()
    generation: bool = False
    selectable: tuple[SelectableField, ...] = ()
    returned_when_deleted: bool = False
    status_on_create: bool = False
    stored: bool = True
    storage_name: str = ""
    to_storage: Callable[[Object], Object] | None = None
    from_storage: Callable[[Object], Object] | None = None
    custom: Any = None
    subresource_names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subresource_names", frozenset(sub.name for sub in self.subresources))

    @cached_property
    def api_version(self) -> str:
        """`group/version`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def storage(self) -> str:
        """The name of the collection: `pods`, `jobs.batch`."""
        return self.storage_name or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @cached_property
    def list_kind_name(self) -> str:
        """`PodList`."""
        return self.list_kind or f"{self.kind}List"

    @cached_property
    def prefix(self) -> bytes:
        """The beginning of every encoded object: kind and apiVersion."""
        return f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    @cached_property
    def storage_version_hash(self) -> str:
        """The discovery entry of the stored version."""
        group = "" if self.from_storage else self.group
        digest = hashlib.sha256(f"{group}/{self.version}/{self.kind}".encode()).digest()
        return base64.b64encode(digest[:8]).decode()

    @property
    def has_status(self) -> bool:
        """True if the status is a subresource: then neither write path touches the other's part."""
        return "status" in self.subresource_names

    def subresource(self, name: str) -> Subresource:
        """The subresource of that name. Raises StatusError: 404 if there is none."""
        for sub in self.subresources:
            if sub.name == name:
                return sub
        raise path_not_found()


class Registry:
    """The resources that are served now."""

    def __init__(self, types: Iterable[ResourceType]) -> None:
        self.revision = 0  #: counts changes
        self._by_path: dict[tuple[str, str, str], ResourceType] = {}
        for resource in types:
            self.add(resource)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._by_path.values())

    def add(self, resource: ResourceType) -> None:
        """Serve a resource, instead of one of the same path."""
        self._by_path[resource.group, resource.version, resource.plural] = resource
        self.revision += 1

    def remove_group_resource(self, group: str, plural: str) -> None:
        """Stop serving a resource in all versions."""
        for key in [key for key in self._by_path if key[0] == group and key[2] == plural]:
            del self._by_path[key]
        self.revision += 1

    def find(self, group: str, version: str, *, plural: str) -> ResourceType:
        """The resource at a path. Raises StatusError: 404 if there is none."""
        resource = self._by_path.get((group, version, plural))
        if resource is None:
            raise path_not_found()
        return resource

    def serves(self, resource: ResourceType) -> bool:
        """True if a resource's path is served still."""
        return (resource.group, resource.version, resource.plural) in self._by_path

    def of_kind(self, api_version: str, kind: str) -> ResourceType | None:
        """The resource that holds objects of a kind, as an owner reference names it."""
        for resource in self._by_path.values():
            if resource.kind == kind and resource.api_version == api_version and resource.stored:
                return resource
        return None

    def of_storage(self, storage: str) -> ResourceType:
        """The first-declared resource over a collection."""
        for resource in self._by_path.values():
            if resource.storage == storage and resource.stored:
                return resource
        raise StatusError(404, "NotFound", f"no resource is stored in {storage}")

    def groups(self) -> dict[str, list[str]]:
        """Group names to their versions, in the order declared; the core group is the empty name."""
        groups: dict[str, list[str]] = {}
        for group, version, _ in self._by_path:
            versions = groups.setdefault(group, [])
            if version not in versions:
                versions.append(version)
        return groups

    def in_version(self, group: str, version: str) -> list[ResourceType]:
        """The resources of one group and version, by name. Raises StatusError: 404 if there are none."""
        resources = [r for r in self._by_path.values() if r.group == group and r.version == version]
        if not resources:
            raise path_not_found()
        return sorted(resources, key=lambda resource: resource.plural)
