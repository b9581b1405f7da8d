"""Puts pods on nodes, class by class, on one trail."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kaicore.engine.class_outlook import ClassOutlook
from kaicore.engine.config import EngineConfig
from kaicore.engine.doubts import Doubts
from kaicore.engine.pod_class import PodClass
from kaicore.engine.trail import Tenancy, Trail
from kaicore.engine.workload import Member
from kaicore.model.placement import Placement
from kaicore.numa.arrivals import Arrival
from kaicore.numa.columns import ZoneCharge

_NOTHING = ZoneCharge()


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a pod is to go, and what it is charged with there.

    Attributes:
        marks: what it leaves there (`kaicore.engine.pod_marks`).
        volumes: the volume that it gets there for each that its class's demand wants, empty for none.
    """

    member: Member
    row: int
    charge: ZoneCharge
    placement: Placement | None
    marks: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()

    @property
    def tenancy(self) -> Tenancy:
        """The pod there."""
        volumes = tuple(filter(None, self.volumes))
        uid, requests = self.member.pod.uid, self.member.requests
        return Tenancy(uid, self.row, requests, self.charge, marks=self.marks, volumes=volumes)


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
        trail: Trail,
        class_of: Callable[[Member], PodClass],
        left_alone: LeftAlone,
        config: EngineConfig,
        doubts: Doubts | None = None,
    ) -> None:
        self.trail = trail
        self._doubts = doubts
        #: Returns the class as which a pod is placed.
        self.class_of = class_of
        self._left_alone = left_alone
        self._config = config
        self._outlooks: dict[str, ClassOutlook] = {}

    def outlook(self, known: PodClass) -> ClassOutlook:
        """Return how a class fares on all rows as they are now."""
        class_key = known.key
        outlook = self._outlooks.get(class_key)
        touched = self.trail.touched
        if outlook is None:
            outlook = self._outlooks[class_key] = ClassOutlook(
                known,
                self.trail.columns,
                self._config,
                rejecting=self._left_alone.rejecting.get(class_key, {}),
                states=self.trail.states,
                avoid=self._left_alone.avoid.get(class_key, ()),
                doubts=self._doubts,
            )
        elif outlook.charges_seen < len(touched):
            outlook.refresh(touched[outlook.charges_seen :])
        outlook.charges_seen = len(touched)
        return outlook

    def place(self, member: Member, *, besides: int | None = None) -> Spot | None:
        """Put a pod on the best row, besides one that is not wanted; None when there is none."""
        known = self.class_of(member)
        outlook = self.outlook(known)
        row = outlook.best(created_at=member.pod.created_at, besides=besides)
        return None if row is None else self._put(member, row, outlook, known)

    def place_on(self, member: Member, row: int) -> Spot | None:
        """Put a pod on a row; None when it cannot take it now."""
        known = self.class_of(member)
        outlook = self.outlook(known)
        takes = outlook.takes(row, created_at=member.pod.created_at)
        return self._put(member, row, outlook, known) if takes else None

    def _put(self, member: Member, row: int, outlook: ClassOutlook, known: PodClass) -> Spot:
        predicted = outlook.predict(row)
        charge = _NOTHING if predicted is None else predicted.charge
        volumes = outlook.volumes(row)
        arrival = None
        if self._doubts is not None and predicted is not None:
            arrival = Arrival(known.aligned, charge, member.pod.created_at)
        asked = Tenancy(
            member.pod.uid,
            row,
            known.requests,
            charge,
            marks=known.marks,
            volumes=tuple(filter(None, volumes)),
            arrival=arrival,
        )
        placement = None if predicted is None else predicted.placement
        return Spot(member, row, self.trail.place(asked).charge, placement, known.marks, volumes)
