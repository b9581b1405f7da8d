"""Running pods that are evicted together, and the cost of that."""

from dataclasses import dataclass

from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Pods that are evicted together.

    Attributes:
        parts: the pods by group, in order of name; first the group that was asked about, then those that do not go on
            without it.
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

    def held_by(self, pods: CyclePods) -> list[tuple[Group, Amounts]]:
        """Return what the pods hold, by group."""
        return [(workload.group, pods.requests_of(members)) for workload, members in self.parts]

    @property
    def groups(self) -> tuple[str, ...]:
        """Keys of the groups that the pods are of."""
        return tuple(workload.group.key for workload, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Choice:
    """The reason for which a search chose a set.

    Attributes:
        chosen_for: what it makes room for, as `EvictionDecided` has it.
        runner_up: what came next, as `EvictionDecided` has it; empty if nothing did.
        runner_up_cost: what that costs at least.
    """

    cost: int
    chosen_for: str
    runner_up: str = ""
    runner_up_cost: int = 0


def name_of(member: Member) -> tuple[str, str, str]:
    """Return the order of pods that are equal otherwise: by namespace, name and uid."""
    return member.pod.namespace, member.pod.name, member.pod.uid
