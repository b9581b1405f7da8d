"""The hooks a kind may have, and what they may look at."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from kai_apiserver.errors import FieldError
from kai_apiserver.objects import Object
from kai_apiserver.store import Stored


class Cluster(Protocol):
    """The rules' view of the rest of the cluster."""

    def now(self) -> datetime:
        """The time."""

    def find(self, storage: str, key: str) -> Object | None:
        """An object without kind and apiVersion, or None."""

    def all_of(self, storage: str) -> Iterator[Stored]:
        """Every object of a collection."""


def _nothing(*_: object) -> None: ...


def _no_errors(*_: object) -> list[FieldError]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The peculiarities of a kind; each hook gets a decoded object and changes it in place.

    Attributes:
        default: fills in what a client left out, on every write.
        admit: on creation only: the initial status, and what depends on other objects.
        validate: what is wrong with the object.
        validate_status: what is wrong with an object of which only the status was written.
        keep: on an update, puts back what only the server may change; gets the new and the old object.
        keep_status: the same on an update of the status.
        validate_update: what is wrong with the change from the second to the first.
    """

    default: Callable[[Object], None] = _nothing
    admit: Callable[[Object, Cluster], None] = _nothing
    validate: Callable[[Object], list[FieldError]] = _no_errors
    validate_status: Callable[[Object], list[FieldError]] = _no_errors
    keep: Callable[[Object, Object], None] = _nothing
    keep_status: Callable[[Object, Object], None] = _nothing
    validate_update: Callable[[Object, Object], list[FieldError]] = _no_errors
