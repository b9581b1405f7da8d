"""Running pods that are evicted together, and what that costs."""

from dataclasses import dataclass

from kaicore.rules.engine.session import Session
from kaicore.rules.engine.workload import Member, Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Pods that are evicted together.

    Attributes:
        parts: the pods by group, in order of name; first the group that was asked about, then those that do not go on
            without it.
        members: all of them.
        cost: see `kaicore.rules.engine.victims.eviction_cost`.
        shrinks: whether the first group goes on without them.
    """

    parts: tuple[tuple[Workload, tuple[Member, ...]], ...]
    members: tuple[Member, ...]
    cost: int
    shrinks: bool

    @property
    def key(self) -> tuple[int, str, str, str]:
        """Order in which sets are preferred: by cost, equal ones by name."""
        return self.cost, *name_of(self.members[0])

    def held_by(self, session: Session) -> list[tuple[Group, Amounts]]:
        """Return what the pods hold, by group."""
        return [(workload.group, session.pods.requests_of(members)) for workload, members in self.parts]

    @property
    def groups(self) -> tuple[str, ...]:
        """Keys of the groups that the pods are of."""
        return tuple(workload.group.key for workload, _ in self.parts)


def name_of(member: Member) -> tuple[str, str, str]:
    """Return the order of pods that are equal otherwise: by namespace, name and uid."""
    return member.pod.namespace, member.pod.name, member.pod.uid
