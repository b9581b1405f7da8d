"""Objects as plain mappings. Names, uids and references are the same every time, where a cluster's are random."""

from hashlib import sha1, sha256
from typing import Any
from uuid import UUID, uuid5

#: An object as its JSON says it.
Object = dict[str, Any]

_UIDS = UUID("1f5c0a52-5d0f-5b7e-9d7c-0d6a6d0c6b5e")

#: What Kubernetes makes random parts of names of (`k8s.io/apimachinery/pkg/util/rand`).
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

#: The longest part of a name before a random one of five letters (`names.maxGeneratedNameLength`).
_BASE_MOST = 58


def derived_uid(*parts: str) -> str:
    """Return a uid that is made of what identifies the object."""
    return str(uuid5(_UIDS, "\x1f".join(parts)))


def suffix(*parts: str, length: int = 5) -> str:
    """Return what stands in a name where a cluster would put random letters."""
    number = int.from_bytes(sha256("\x1f".join(parts).encode()).digest())
    letters = ""
    for _ in range(length):
        number, digit = divmod(number, len(_LETTERS))
        letters += _LETTERS[digit]
    return letters


def sha1_key(text: str) -> str:
    """Return the 40 hex digits by which JobSet and LeaderWorkerSet label what belongs together."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


def generated_name(base: str, *parts: str) -> str:
    """Return the name that `generateName: base` gives, its letters made of `parts`."""
    return base[:_BASE_MOST] + suffix(base, *parts)


def group_of(api_version: str) -> str:
    """Return the group of an apiVersion; empty for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def name_of(owner: Object) -> str:
    """Return an object's name."""
    return str(owner["metadata"]["name"])


def namespace_of(owner: Object) -> str:
    """Return an object's namespace."""
    return str(owner["metadata"]["namespace"])


def controlled_by(owner: Object) -> list[Object]:
    """Return the owner references of what a controller makes for `owner`."""
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": name_of(owner),
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
