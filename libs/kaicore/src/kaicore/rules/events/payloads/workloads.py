"""Facts about the owners and groups of pods, and about priorities."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.group_source import GroupSource
from kaicore.rules.model.pod import PriorityClass


class PriorityClassObserved(Payload, frozen=True):
    """The watcher saw a priority class that is new or has changed."""

    priority_class: PriorityClass


class PriorityClassDeleted(Payload, frozen=True):
    """A priority class is gone."""

    uid: str
    name: str


class GroupSourceObserved(Payload, frozen=True):
    """The watcher saw an object that says how pods belong together, new or changed: a PodGroup, an owner of pods."""

    source: GroupSource


class GroupSourceDeleted(Payload, frozen=True):
    """An object that said how pods belong together is gone; `kind` with its API group."""

    kind: str
    uid: str
    namespace: str
    name: str
