"""A patch of a what-if over history: its changes, in the form that people write (docs/how-to/what-if.md)."""

from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from kaicore.errors import ConfigurationError
from kaicore.rules.model.node import TopologyPolicy, TopologyScope
from kaicore.spelling import did_you_mean


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Part of a patch."""


class NodesToAdd(_Part, frozen=True, kw_only=True):
    """Nodes that are there from the beginning on.

    Attributes:
        like: a node of the window, whose likes they are.
        profile: or a profile of the simulated fleet, whose nodes they are, one after the other.
        count: how many.
        prefix: of their names; by default that of what they are like, and `new`.
    """

    like: str = ""
    profile: str = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    prefix: str = ""


class NodesToChange(_Part, frozen=True, kw_only=True):
    """Nodes that are another way from the beginning on.

    Attributes:
        nodes: names, with `*` and `?`; empty for all.
        match_labels: of these, those that have all these labels.
        topology_policy: of the Topology Manager.
        topology_scope: likewise.
        labels: to be set; null takes one off.
        unschedulable: cordoned, or not.
    """

    nodes: tuple[str, ...] = ()
    match_labels: dict[str, str] = {}
    topology_policy: TopologyPolicy | None = None
    topology_scope: TopologyScope | None = None
    labels: dict[str, str | None] = {}
    unschedulable: bool | None = None


class NodesPatch(_Part, frozen=True, kw_only=True):
    """What is to be different of the nodes; `remove` has names, with `*` and `?`."""

    add: tuple[NodesToAdd, ...] = ()
    remove: tuple[str, ...] = ()
    change: tuple[NodesToChange, ...] = ()


class SharePatch(_Part, frozen=True, kw_only=True):
    """What a queue may have of a resource; `unlimited` for no bound."""

    quota: str | int | None = None
    limit: str | int | None = None
    weight: Annotated[int, msgspec.Meta(ge=0)] | None = None


class QueuePatch(_Part, frozen=True, kw_only=True):
    """What is to be different of a queue; `resources` by name, such as `gpu`, `cpu`, `memory`."""

    parent: str | None = None
    priority: int | None = None
    resources: dict[str, SharePatch] = {}


class Patch(_Part, frozen=True, kw_only=True):
    """An alternative.

    Attributes:
        name: by which reports call it; the file's, where it has none.
        settings: of the scheduler, as `--set`.
        nodes: see `NodesPatch`.
        queues: by name, as the log has it: `team-a`, `ClusterQueue/team-a`.
        priorities: values of priority classes, by name.
    """

    name: str = ""
    settings: dict[str, object] = {}
    nodes: NodesPatch = NodesPatch()
    queues: dict[str, QueuePatch] = {}
    priorities: dict[str, int] = {}


def read_patch(path: Path) -> Patch:
    """Read a patch from a YAML or JSON file.

    Raises:
        ConfigurationError: naming the file, the field, and what is wrong.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigurationError(f"{path}: {problem}") from error
    return patch_of(text, where=str(path), name=path.stem)


def patch_of(text: str, *, where: str, name: str) -> Patch:
    """Read a patch.

    Args:
        text: YAML, of which JSON is a part.
        where: it stands, for errors.
        name: that it has where it says none.

    Raises:
        ConfigurationError: naming where, the field, and what is wrong.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{where}: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{where}: a patch is a mapping of {', '.join(Patch.__struct_encode_fields__)}")
    try:
        patch = msgspec.convert(document, Patch)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}{_close(str(error))}") from error
    return patch if patch.name else msgspec.structs.replace(patch, name=name)


def _close(message: str) -> str:
    """Return what may have been meant by an unknown field."""
    before, field, _ = (*message.split("`"), "", "")[:3]
    if "unknown field" not in before:
        return ""
    parts = (Patch, NodesPatch, NodesToAdd, NodesToChange, QueuePatch, SharePatch)
    return did_you_mean(field, {name for part in parts for name in part.__struct_encode_fields__})
