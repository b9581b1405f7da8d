"""Puts pods on nodes, class by class, on one trail."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.volume_supply import GivenVolume
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.engine.workload import Member
from kaicore.rules.model.placement import Placement
from kaicore.rules.numa.columns import ZoneCharge

_NOTHING = ZoneCharge()


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a pod is to go, and what it is charged with there.

    Attributes:
        marks: what it leaves there (`kaicore.rules.engine.constraints.pod_marks`).
        volumes: what it gets there for each volume that its class's demand wants.
    """

    member: Member
    row: int
    charge: ZoneCharge
    placement: Placement | None
    marks: tuple[str, ...] = ()
    volumes: tuple[GivenVolume, ...] = ()

    @property
    def tenancy(self) -> PodCharge:
        """The pod there."""
        uid, requests = self.member.pod.uid, self.member.requests
        return PodCharge(uid, self.row, requests, self.charge, marks=self.marks, volumes=self.volumes)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Rows that are not for certain classes for what happened there.

    Attributes:
        rejecting: by class key, the rows whose kubelet rejected such a pod and where nothing changed since, with the
            reason.
        avoid: by class key, the rows from which pods of the class were taken because their zones were not right.
    """

    rejecting: Mapping[str, dict[int, str]] = field(default_factory=dict)
    avoid: Mapping[str, set[int]] = field(default_factory=dict)


class Placer:
    """Evaluates each class once, and afterwards only the rows that have changed since."""

    def __init__(
        self,
        trail: Statement,
        class_of: Callable[[Member], PodClass],
        left_alone: LeftAlone,
        config: EngineConfig,
    ) -> None:
        self.trail = trail
        #: Returns the class as which a pod is placed.
        self.class_of = class_of
        self._left_alone = left_alone
        self._config = config
        self._outlooks: dict[str, FeasibleNodes] = {}

    def outlook(self, known: PodClass) -> FeasibleNodes:
        """Return how a class fares on all rows as they are now."""
        class_key = known.key
        outlook = self._outlooks.get(class_key)
        touched = self.trail.touched
        if outlook is None:
            outlook = self._outlooks[class_key] = FeasibleNodes(
                known,
                self.trail.columns,
                self._config,
                rejecting=self._left_alone.rejecting.get(class_key, {}),
                states=self.trail.states,
                avoid=self._left_alone.avoid.get(class_key, ()),
            )
        elif outlook.charges_seen < len(touched):
            outlook.refresh(touched[outlook.charges_seen :])
        outlook.charges_seen = len(touched)
        return outlook

    def place(self, member: Member, *, besides: int | None = None) -> Assignment | None:
        """Put a pod on the best row, besides one that is not wanted; None when there is none."""
        known = self.class_of(member)
        outlook = self.outlook(known)
        row = outlook.best(besides=besides)
        return None if row is None else self._put(member, row, outlook, known)

    def place_on(self, member: Member, row: int) -> Assignment | None:
        """Put a pod on a row; None when it cannot take it now."""
        known = self.class_of(member)
        outlook = self.outlook(known)
        return self._put(member, row, outlook, known) if outlook.takes(row) else None

    def _put(self, member: Member, row: int, outlook: FeasibleNodes, known: PodClass) -> Assignment:
        predicted = outlook.predict(row)
        charge = _NOTHING if predicted is None else predicted.charge
        volumes = outlook.volumes(row)
        asked = PodCharge(member.pod.uid, row, known.requests, charge, marks=known.marks, volumes=volumes)
        placement = None if predicted is None else predicted.placement
        return Assignment(member, row, self.trail.place(asked).charge, placement, known.marks, volumes)
