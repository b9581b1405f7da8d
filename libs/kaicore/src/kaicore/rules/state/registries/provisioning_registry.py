"""The ProvisioningRequests of a cluster, and those of them that stand for waiting groups."""

import msgspec
from msgspec.structs import replace

from kaicore.rules.engine.work.provisioning import DELETED, REFUSED, StandingRequest
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.objects.provisioning import ACCEPTED, NOT_SERVED, PROVISIONED, ProvisioningRequest

#: Events that are for `ProvisioningRegistry.take`.
PROVISIONING_EVENTS: tuple[type[Payload], ...] = (
    payloads.ProvisioningRequestObserved,
    payloads.ProvisioningRequestDeleted,
    payloads.ProvisioningRequested,
    payloads.ProvisioningWithdrawn,
    payloads.ProvisioningRequestCreated,
    payloads.ProvisioningRequestRemoved,
    payloads.ProvisioningRequestRefused,
)


class ProvisioningRecord(msgspec.Struct):
    """All of it, for a snapshot."""

    requests: list[ProvisioningRequest] = []
    standing: list[StandingRequest] = []


class ProvisioningRegistry:
    """Everything about ProvisioningRequests, at one position of a cluster's log.

    Attributes:
        requests: all that there are, by `namespace/name`.
        standing: what was decided and not withdrawn since, by the group's key.
    """

    def __init__(self) -> None:
        self.requests: dict[str, ProvisioningRequest] = {}
        self.standing: dict[str, StandingRequest] = {}
        #: Group of each standing request, by the request's `namespace/name`.
        self._group_of: dict[str, str] = {}

    def take(self, payload: Payload, *, decided_at: int, recorded_at: int) -> bool:
        """Take an event over; return whether it may let a cycle decide otherwise.

        Args:
            payload: of one of `PROVISIONING_EVENTS`.
            decided_at: when what it tells happened, microseconds since the epoch.
        """
        match payload:
            case payloads.ProvisioningRequestObserved(request):
                key = _key(request)
                self.requests[key] = request
                return self._update(key, request, recorded_at)
            case payloads.ProvisioningRequestDeleted(uid):
                key = _key(payload)
                before = self.requests.get(key)
                if before is None or before.uid != uid:
                    return False
                del self.requests[key]
                return self._end(key, DELETED, "somebody has deleted it", recorded_at)
            case payloads.ProvisioningRequested():
                self._stand(
                    StandingRequest(
                        group=payload.group,
                        namespace=payload.namespace,
                        name=payload.name,
                        shard=payload.cycle.rpartition("/")[0],
                        provisioning_class=payload.provisioning_class,
                        attempt=payload.attempt,
                        pod_sets=payload.pod_sets,
                        decided_at=decided_at,
                    )
                )
            case payloads.ProvisioningWithdrawn(group):
                if self._group_of.pop(_key(payload), None) == group:
                    del self.standing[group]
            case payloads.ProvisioningRequestCreated():
                standing = self._standing(_key(payload))
                if standing is not None and standing.stage == "requested" and not standing.ended:
                    self.standing[standing.group] = replace(standing, stage="created")
                    return True
            case payloads.ProvisioningRequestRefused(code=code, reason=reason, message=message, removing=False):
                return self._end(_key(payload), REFUSED, _refusal(code, reason, message), recorded_at)
            case _:
                pass
        return False

    def record(self) -> ProvisioningRecord:
        """Return all of it, in order."""
        return ProvisioningRecord(
            [self.requests[key] for key in sorted(self.requests)],
            [self.standing[key] for key in sorted(self.standing)],
        )

    def restore(self, record: ProvisioningRecord) -> None:
        """Take over what a snapshot holds."""
        self.requests = {_key(request): request for request in record.requests}
        for standing in record.standing:
            self._stand(standing)

    def _stand(self, standing: StandingRequest) -> None:
        before = self.standing.get(standing.group)
        if before is not None:
            self._group_of.pop(_key(before), None)
        self.standing[standing.group] = standing
        self._group_of[_key(standing)] = standing.group

    def _standing(self, key: str) -> StandingRequest | None:
        group = self._group_of.get(key)
        return None if group is None else self.standing[group]

    def _update(self, key: str, request: ProvisioningRequest, recorded_at: int) -> bool:
        """Take over how a request fares; an end is for good."""
        before = self._standing(key)
        if before is None or before.ended == DELETED:
            return False
        end = request.end
        if end is not None:
            return self._end(key, end.type, end.message or end.reason, recorded_at)
        if before.ended:
            # One of which only the answer was lost when it was made.
            if not before.refused:
                return False
            before = replace(before, ended="", ended_at=0)
        accepted, provisioned = request.condition(ACCEPTED), request.condition(PROVISIONED)
        stage, condition = "created", accepted
        if accepted is not None and accepted.met:
            stage = "accepted"
        if provisioned is not None:
            # Where it is not met, it says why not yet.
            condition = provisioned
            stage = "provisioned" if provisioned.met else stage
        now = replace(
            before, stage=stage, message=(condition.message or condition.reason) if condition is not None else ""
        )
        changed = now != self.standing[before.group]
        self.standing[before.group] = now
        return changed

    def _end(self, key: str, ended: str, message: str, recorded_at: int) -> bool:
        before = self._standing(key)
        if before is None or (before.ended and not before.refused):
            return False
        self.standing[before.group] = replace(before, ended=ended, ended_at=recorded_at, message=message)
        return True


def _key(about: ProvisioningRequest | StandingRequest | Payload) -> str:
    namespace: str = getattr(about, "namespace")  # noqa: B009 - all that are meant have both
    name: str = getattr(about, "name")  # noqa: B009
    return f"{namespace}/{name}"


def _refusal(code: int, reason: str, message: str) -> str:
    """Say why the API server did not take a request."""
    if reason == NOT_SERVED:
        return "the API server does not serve ProvisioningRequests"
    why = f"{reason}: {message}" if message else reason
    return f"the API server refused it: {code} {why}" if code else f"the API server did not take it: {why}"
