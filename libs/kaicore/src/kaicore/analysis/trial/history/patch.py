"""A patch of a what-if over history: its changes, in the form that people write (docs/how-to/what-if.md).

Settings are changed as with `--set KEY=VALUE` (docs/reference/scheduler-settings.md). Three patches are ready: the
policies that the league measured as the best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import yaml

from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig, current_names
from kaicore.rules.engine.policies.setting import PolicySetting
from kaicore.rules.model.node import TopologyPolicy, TopologyScope
from kaicore.spelling import did_you_mean
from kaicore.yaml_text import load_yaml

Settings = Mapping[str, object]


def read_setting(text: str) -> tuple[str, object]:
    """Read `KEY=VALUE`, the value as YAML.

    Raises:
        ConfigurationError: it is none.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"--set {text}: is no KEY=VALUE, such as numa=false")
    try:
        return key.strip(), load_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--set {text}: {value!r} is no YAML") from error


def read_settings(texts: Sequence[str]) -> dict[str, object]:
    """Read several; of two for one key the last counts."""
    settings = dict(read_setting(text) for text in texts)
    applied(EngineConfig(), settings, where="--set")
    return settings


def applied(config: EngineConfig, settings: Settings, *, where: str) -> EngineConfig:
    """Return a configuration with settings changed; parts of parts are `numa_scoring.strategy`.

    Args:
        config: to begin with.
        settings: values by key.
        where: they stand, for errors.

    Raises:
        ConfigurationError: there is no such setting, or it cannot have the value.
    """
    document: dict[str, Any] = msgspec.to_builtins(config)
    for key, value in current_names(settings).items():
        into, kind = document, EngineConfig
        *outer, last = key.split(".")
        for part in outer:
            kind = _part(kind, part, key, where)
            into = into.setdefault(part, {})
        _part(kind, last, key, where)
        into[last] = value
        try:
            msgspec.convert(document, EngineConfig)
        except (msgspec.ValidationError, ConfigurationError) as error:
            raise ConfigurationError(f"{where}: {key}: {error}: {value!r}") from error
    return msgspec.convert(document, EngineConfig)


def _part(kind: Any, name: str, key: str, where: str) -> Any:
    """Return the type of a field of a struct."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)} if _is_struct(kind) else {}
    if name not in fields:
        close = did_you_mean(name, fields)
        raise ConfigurationError(f"{where}: {key}: there is no such setting{close}")
    return fields[name]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Part of a question."""


class PatchText(_Part, frozen=True, kw_only=True):
    """A patch as it is written (see the module), and what it is called where it says nothing."""

    name: str
    text: str


class HistoryQuestion(_Part, frozen=True, kw_only=True):
    """The question: window and alternatives.

    Attributes:
        since: the window's first event (`kaicore.analysis.replay.moments`); empty for the log's first.
        until: its last event; empty for the log's last.
        settings: `KEY=VALUE`, of every alternative.
        patches: one for each alternative; without any, `settings` are the only one.
        policies: the best policies are alternatives too (`kaicore.analysis.trial.history.patch`).
    """

    since: str = msgspec.field(name="from", default="")
    until: str = msgspec.field(name="to", default="")
    settings: tuple[str, ...] = ()
    patches: tuple[PatchText, ...] = ()
    policies: bool = False


class _PatchPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Part of a patch."""


class NodesToAdd(_PatchPart, frozen=True, kw_only=True):
    """Nodes that are there from the beginning on.

    Attributes:
        like: a node of the window that they copy.
        profile: or a profile of the simulated fleet: they are its nodes, one after the other.
        count: how many.
        prefix: of their names; by default that of what they are like, and `new`.
    """

    like: str = ""
    profile: str = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    prefix: str = ""


class NodesToChange(_PatchPart, frozen=True, kw_only=True):
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


class NodesPatch(_PatchPart, frozen=True, kw_only=True):
    """The changes of nodes; `remove` has names, with `*` and `?`."""

    add: tuple[NodesToAdd, ...] = ()
    remove: tuple[str, ...] = ()
    change: tuple[NodesToChange, ...] = ()


class SharePatch(_PatchPart, frozen=True, kw_only=True):
    """A queue's amounts of one resource; `unlimited` for no bound."""

    quota: str | int | None = None
    limit: str | int | None = None
    weight: Annotated[int, msgspec.Meta(ge=0)] | None = None


class QueuePatch(_PatchPart, frozen=True, kw_only=True):
    """The changes of one queue; `resources` by name, such as `gpu`, `cpu`, `memory`."""

    parent: str | None = None
    priority: int | None = None
    resources: dict[str, SharePatch] = {}


class Patch(_PatchPart, frozen=True, kw_only=True):
    """An alternative.

    Attributes:
        name: by which reports call it; the file's, where it has none.
        settings: of the scheduler, as `--set`.
        nodes: see `NodesPatch`.
        queues: by name, as the log has it: `team-a`, `ClusterQueue/team-a`.
        priorities: values of priority classes, by name.
        policies: added to the shard's, in place of one of the same name (`kai policy try` writes them).
    """

    name: str = ""
    settings: dict[str, object] = {}
    nodes: NodesPatch = NodesPatch()
    queues: dict[str, QueuePatch] = {}
    priorities: dict[str, int] = {}
    policies: tuple[PolicySetting, ...] = ()


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
        document = load_yaml(text)
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


_HOUR_US = 3_600_000_000

#: Placement of all three: pods with devices leave room for the work of the last week.
_PLACEMENT: Mapping[str, object] = {"placement_strategy": "binpack", "recent_work_days": 7}


@dataclass(frozen=True, slots=True)
class MeasuredPolicy:
    """A policy: its settings, and the clusters for which it measured best.

    Attributes:
        name: of its column in a report.
        meaning: what it does, in a few words.
        settings: of the scheduler, as `--set` has them.
    """

    name: str
    meaning: str
    settings: Mapping[str, object]

    def patch(self) -> PatchText:
        """Return it as an alternative of a question."""
        document = {"name": self.name, "settings": {**_PLACEMENT, **self.settings}}
        return PatchText(name=self.name, text=msgspec.json.encode(document).decode())


#: The first two differ in what may start before the oldest group that waits; the third also moves running pods.
BEST_POLICIES = (
    MeasuredPolicy(
        "fill", "all that fits starts; large groups wait longest", {"backfill": "off", "consolidate_win_us": 0}
    ),
    MeasuredPolicy(
        "reserve",
        "the oldest group that waits for room has a reserved start",
        {"backfill": "easy", "run_time_per_cent": 75, "consolidate_win_us": 0},
    ),
    MeasuredPolicy(
        "reserve-and-move",
        "as reserve; pods are moved where a start wins more than they lose, at an hour for each GPU",
        {"backfill": "easy", "run_time_per_cent": 75, "consolidate_win_us": _HOUR_US},
    ),
)
