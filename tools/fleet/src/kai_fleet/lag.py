"""Lag of the API and podresources behind a kubelet's managers, as on real nodes.

`docs/reference/fleet.md` has the figures, under "Lag".
"""

import hashlib
from dataclasses import dataclass

from kai_fleet.profile import LagProfile
from kai_fleet.wire import PodObject


@dataclass(slots=True)
class Lag:
    """The lag of one node, in seconds; it may be changed while the node runs.

    How late something is about a pod depends on the profile's `seed` and the pod's name alone: a run can be repeated.

    Attributes:
        status_s: the API hears up to so much later of an end than the managers, which free at once.
        podresources_s: for up to so long after an admission, podresources shows half of it.
        sync_s: pods that arrive within so long of the first are admitted together, oldest first.
    """

    status_s: float
    podresources_s: float
    sync_s: float
    seed: int

    @classmethod
    def of(cls, profile: LagProfile, *, seed: int) -> "Lag":
        """The lag that a profile asks for."""
        return cls(profile.status, profile.podresources, profile.sync, seed)

    def of_status(self, pod: PodObject) -> float:
        """How much later than the managers the API hears of this pod's end."""
        return self.status_s and self.status_s * self._share("status", pod)

    def of_podresources(self, pod: PodObject) -> float:
        """For how long podresources shows half of this pod."""
        return self.podresources_s and self.podresources_s * self._share("podresources", pod)

    def _share(self, what: str, pod: PodObject) -> float:
        """A number from 0 to 1."""
        text = f"{self.seed}/{what}/{pod.metadata.namespace}/{pod.metadata.name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 0xFFFFFFFF
