"""The input and the output of the rules of `kinds`: an object with its children, and what is to be done."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kai_apiserver.objects import Object, holds, parse_time, timestamp

#: Phases of a pod that has ended.
ENDED = ("Succeeded", "Failed")
#: Exit code of a pod that has none: as if of a signal.
_NO_EXIT_CODE = 0xBEEF


@dataclass(slots=True)
class Plan:
    """The next step for an object.

    Attributes:
        create: children that should be there, with kind and apiVersion; those that are there stay.
        change: children with another spec.
        delete: children to delete; the controller makes them anew where they are wanted.
        delete_owner: whether the object's time to live is over.
        again: seconds until the object is to be looked at again, or None.
    """

    create: list[Object] = field(default_factory=list)
    change: list[Object] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)
    delete_owner: bool = False
    again: float | None = None


class View:
    """An object and its children, as a rule sees them; `status` and the annotations are the rule's to change."""

    def __init__(
        self,
        owner: Object,
        children: Iterable[Object],
        *,
        now: datetime,
        failures: int,
        find: Callable[[str, str, str], Object | None],
    ) -> None:
        """Args:
        find: returns any object by collection, namespace and name.
        """
        self.owner = owner
        self.name: str = owner["metadata"]["name"]
        self.namespace: str = owner["metadata"]["namespace"]
        self.spec: Object = owner.get("spec") or {}
        self.status: Object = deepcopy(owner.get("status") or {})
        self.now = now
        self.stamp = timestamp(now)
        self.failures = failures
        self._find = find
        self._children = {(child["kind"], child["metadata"]["name"]): child for child in children}

    def child(self, kind: str, name: str) -> Object | None:
        """Return a child."""
        return self._children.get((kind, name))

    def children(self, kind: str) -> list[Object]:
        """Return the children of a kind, those that are being deleted among them."""
        return [child for (of, _), child in self._children.items() if of == kind]

    def find(self, storage: str, name: str) -> Object | None:
        """Return any object of the namespace."""
        return self._find(storage, self.namespace, name)

    def settle(self, plan: Plan, wanted: list[Object]) -> None:
        """Plan to have the wanted pods, Jobs and whatever else, and no others of these kinds.

        A child that has ended stays, as far as it is wanted.
        """
        names = {(child["kind"], child["metadata"]["name"]) for child in wanted}
        kinds = {"Pod", "Job", "RayCluster", "StatefulSet"}
        plan.create += wanted
        plan.delete += [
            child
            for (kind, name), child in self._children.items()
            if kind in kinds and (kind, name) not in names and not is_going(child)
        ]

    def has_ended(self, *conditions: str) -> bool:
        """True if one of these conditions is true."""
        return any(holds({"status": self.status}, kind) for kind in conditions)

    def say(self, kind: str, reason: str, message: str, *, instead_of: Iterable[str] = ()) -> None:
        """Set a condition, and those that it takes the place of to false; what is new comes last."""
        conditions: list[Object] = self.status.setdefault("conditions", [])
        for other in conditions:
            if other["type"] in instead_of and other["status"] == "True":
                other |= {"status": "False", "lastTransitionTime": self.stamp}
        present = next((one for one in conditions if one["type"] == kind), None)
        if present is not None and present["status"] == "True":
            return
        if present is not None:
            conditions.remove(present)
        conditions.append(
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": self.stamp,
                "lastUpdateTime": self.stamp,
            }
        )

    def left_to_live(self, seconds: Any, ended: str | None) -> float | None:
        """Return seconds until an ended object's time to live is over; None where it lives on."""
        if seconds is None or not ended:
            return None
        return max(0.0, float(seconds - (self.now - parse_time(ended)).total_seconds()))


def is_going(child: Object) -> bool:
    """True if something is being deleted."""
    return bool(child["metadata"].get("deletionTimestamp"))


def phase_of(pod: Object) -> str:
    """A pod's phase; `Pending` where no one has said one."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_ready(pod: Object) -> bool:
    """True if a pod is ready, and not being deleted."""
    return not is_going(pod) and holds(pod, "Ready")


def label_of(child: Object, name: str) -> str:
    """A label's value, empty where there is none."""
    return str((child["metadata"].get("labels") or {}).get(name, ""))


def exit_code(pod: Object) -> int:
    """The largest exit code of a pod's containers; of one that never ran, one as if of a signal."""
    codes = [
        status["state"]["terminated"].get("exitCode", 0)
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
        if (status.get("state") or {}).get("terminated")
    ]
    return max(codes, default=_NO_EXIT_CODE)


def is_past_deadline(view: View, deadline: Any) -> bool:
    """True if an object has been active for so many seconds since `startTime`; None is no deadline."""
    started = view.status.get("startTime")
    return bool(
        deadline is not None and started and (view.now - parse_time(started)).total_seconds() >= float(deadline)
    )
