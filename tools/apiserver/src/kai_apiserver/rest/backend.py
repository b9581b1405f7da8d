"""The base of every verb: the resources, the store, the time."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kai_apiserver.errors import bad_request, not_found, undecodable
from kai_apiserver.objects import Object, decode_json, encode_json, timestamp
from kai_apiserver.resources.registry import Registry, ResourceType
from kai_apiserver.resources.types import Mismatch, decode
from kai_apiserver.rest.apply import Manager, sign
from kai_apiserver.store import Collection, Store, Stored

AfterWrite = Callable[[Stored, "Operation"], None]


@dataclass(frozen=True, slots=True)
class User:
    """The author of the request."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)


#: Who the server's own controllers are.
CONTROLLER = User("system:kube-controller-manager", groups=("system:masters", "system:authenticated"))


@dataclass(slots=True)
class Operation:
    """The circumstances of one request.

    Attributes:
        dry_run: do everything but the writing.
        field_validation: `Ignore`, `Warn` or `Strict`: what unknown fields lead to.
        field_manager: the owner of the fields.
        warnings: warnings for the client besides the answer.
    """

    user: User = CONTROLLER
    dry_run: bool = False
    field_validation: str = "Ignore"
    field_manager: str = "kube-controller-manager"
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a request: a resource, and as far as the path says, an object in it or a part of that.

    Attributes:
        namespace: its namespace; empty for cluster-scoped resources and for all namespaces.
        name: the object's name; empty for the collection.
        subresource: `status`, or empty for the object itself.
    """

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> str:
        """The key of the object in its collection."""
        return f"{self.namespace}/{self.name}" if self.resource.namespaced else self.name


class Backend:
    """The cluster's state, and the hooks that keep derived things up to date.

    Attributes:
        registry: the resources that are served.
        after_write: called after a create or update of an object of that collection was committed.
        chance: where uids and generated names come from; None for the machine's.
    """

    def __init__(
        self,
        registry: Registry,
        store: Store,
        *,
        clock: Callable[[], datetime] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.registry = registry
        self.store = store
        self.chance = chance
        self.after_write: dict[str, AfterWrite] = {}
        self._clock = clock or (lambda: datetime.now(UTC))

    def now(self) -> datetime:
        """The time."""
        return self._clock()

    def timestamp(self) -> str:
        """The time as objects carry it."""
        return timestamp(self._clock())

    def collection(self, resource: ResourceType) -> Collection:
        """The storage of a resource's objects."""
        return self.store.collection(resource.storage)

    def find(self, storage: str, key: str) -> Object | None:
        """An object without kind and apiVersion, or None."""
        stored = self.store.collection(storage).get(key)
        return stored.decode() if stored is not None else None

    def all_of(self, storage: str) -> Iterator[Stored]:
        """Every object of a collection."""
        return iter(self.store.collection(storage))

    def get(self, target: Target) -> Stored:
        """One object. Raises StatusError: 404 if it is not there."""
        stored = self.collection(target.resource).get(target.key)
        if stored is None:
            raise not_found(target.resource, target.name)
        return stored

    def signature(self, target: Target, operation: Operation) -> Callable[[Object], None]:
        """The writer of `managedFields`: who changed which part of an object, and when."""
        manager = Manager(
            operation.field_manager or "unknown", "Update", target.resource.api_version, target.subresource
        )

        def write(obj: Object) -> None:
            sign(obj, manager, self.timestamp())

        return write

    def write_status(self, resource: ResourceType, new: Object, stored: Stored) -> Stored:
        """Commit what one of the server's own controllers found out about an object."""
        sign_status = self.signature(Target(resource, subresource="status"), Operation())
        return self.store.update(self.collection(resource), new, stored, sign=sign_status)

    def finish_write(self, stored: Stored, *, resource: ResourceType, operation: Operation) -> None:
        """Run what hangs on a committed write."""
        hook = self.after_write.get(resource.storage)
        if hook is not None:
            hook(stored, operation)


def encode(stored: Stored, resource: ResourceType) -> bytes:
    """An object as the resource's version shows it."""
    if resource.from_storage is None:
        return resource.prefix + stored.body[1:]
    return resource.prefix + encode_json(resource.from_storage(stored.decode()))[1:]


def shown(stored: Stored, resource: ResourceType) -> Object:
    """A private copy of an object as the resource's version shows it, with kind and apiVersion."""
    obj: Object = decode_json(encode(stored, resource))
    return obj


def read_object(resource: ResourceType, given: Any, *, operation: Operation) -> Object:
    """Read what a client sent as an object of the resource, in terms of the storage and without kind and apiVersion.

    Raises StatusError: 400 if it is none.
    """
    kind, version = resource.kind, resource.version
    if not isinstance(given, dict):
        raise undecodable(
            kind, version, why="json: cannot unmarshal array into Go value of type map[string]interface {}"
        )
    api_version = given.get("apiVersion") or resource.api_version
    if api_version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if (given.get("kind") or kind) != kind:
        raise bad_request(f'{given["kind"]} in version "{version}" cannot be handled as a {kind}: wrong kind')
    obj, unknown = _decoded(resource, given)
    if unknown and operation.field_validation != "Ignore":
        warnings = [f'unknown field "{path}"' for path in unknown]
        if operation.field_validation == "Strict":
            raise undecodable(kind, version, why=f"strict decoding error: {', '.join(warnings)}")
        operation.warnings += warnings
    obj.pop("kind", None)
    obj.pop("apiVersion", None)
    obj.setdefault("metadata", {})
    return resource.to_storage(obj) if resource.to_storage is not None else obj


def _decoded(resource: ResourceType, given: Object) -> tuple[Object, list[str]]:
    try:
        if resource.custom is None:
            assert resource.type_name is not None
            return decode(resource.type_name, given)
        metadata, unknown = decode("V1ObjectMeta", given.get("metadata") or {})
    except Mismatch as error:
        raise undecodable(resource.kind, resource.version, why=str(error)) from error
    obj = {**given, "metadata": metadata}
    return obj, [f"metadata.{path}" for path in unknown] + resource.custom.read(obj)
