"""ProvisioningRequests in a cycle: the settings about them, and the one request that stands for a group."""

from typing import Annotated

import msgspec

from kaicore.rules.events.payloads import ProvisioningPodSet

#: See `StandingRequest.ended`.
REFUSED, DELETED = "Refused", "Deleted"


class ProvisioningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of provisioning: asking for nodes for groups that need new ones.

    Attributes:
        class_name: the ProvisioningClass for gangs that choose none, such as
            `best-effort-atomic-scale-up.autoscaling.x-k8s.io`; empty for no requests for these.
        other_classes: further classes that groups may choose.
        parameters: `spec.parameters` of every request.
        backoff_us: how long after a request that came to nothing the next is made; doubles with each further one.
        backoff_max_us: the longest such wait.
    """

    class_name: str = ""
    other_classes: tuple[str, ...] = ()
    parameters: dict[str, str] = {}
    backoff_us: Annotated[int, msgspec.Meta(ge=1)] = 60_000_000
    backoff_max_us: Annotated[int, msgspec.Meta(ge=1)] = 1_800_000_000

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes that there may be requests of."""
        return tuple(name for name in dict.fromkeys((self.class_name, *self.other_classes)) if name)


class StandingRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last ProvisioningRequest that was decided for a group, until it is withdrawn.

    Attributes:
        attempt: see `ProvisioningRequested`, as all that follows.
        decided_at: the cycle's time, microseconds since the epoch.
        stage: how far it is: `requested`, `created`, `accepted`, `provisioned`.
        ended: how it came to nothing: `Refused`, `Failed`, `CapacityRevoked`, `BookingExpired`, `Deleted`; empty as
            long as it has not.
        ended_at: recorded time of that.
        message: what was said to its stage, or to its end.
    """

    group: str
    namespace: str
    name: str
    shard: str
    provisioning_class: str
    attempt: int
    pod_sets: tuple[ProvisioningPodSet, ...]
    decided_at: int
    stage: str = "requested"
    ended: str = ""
    ended_at: int = 0
    message: str = ""

    @property
    def subject(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def pods(self) -> int:
        """For how many pods it is."""
        return sum(pod_set.count for pod_set in self.pod_sets)

    @property
    def refused(self) -> bool:
        """True if the API server refused it: there is nothing to delete."""
        return self.ended == REFUSED

    @property
    def answered(self) -> bool:
        """True if an autoscaler works on it: new nodes may be its own, some time before they are reported as such."""
        return self.stage in ("accepted", "provisioned") and not self.ended
