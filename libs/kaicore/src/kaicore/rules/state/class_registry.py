"""The classes of the existing pods."""

from kaicore.rules.engine.placement.pod_class import PodClass, class_identity, pod_class
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.cluster_constraints import ClusterConstraints


class ClassRegistry:
    """Classes by key, each with the number of pods that are of it."""

    def __init__(self, constraints: ClusterConstraints) -> None:
        self.classes: dict[str, PodClass] = {}
        self._constraints = constraints
        self._by_identity: dict[bytes, str] = {}
        self._identities: dict[str, bytes] = {}
        self._pods: dict[str, int] = {}

    def enter(self, pod: Pod) -> str:
        """Count a pod under its class; returns the class's key."""
        identity = class_identity(pod)
        key = self._by_identity.get(identity)
        if key is None:
            new = pod_class(pod, identity)
            key = new.key
            self.restore(new, identity, 0)
        self._pods[key] += 1
        return key

    def leave(self, key: str) -> bool:
        """Count a pod no more; returns whether it was the last one of its class."""
        self._pods[key] -= 1
        return not self._pods[key]

    def forget(self, key: str) -> None:
        """Forget a class that no pod is of."""
        self._constraints.class_forgotten(self.classes[key])
        del self._pods[key], self.classes[key], self._by_identity[self._identities.pop(key)]

    def record(self, key: str) -> tuple[bytes, int]:
        """Return a class's identity and how many pods are of it, for snapshots."""
        return self._identities[key], self._pods[key]

    def restore(self, pod_class: PodClass, identity: bytes, pods: int) -> None:
        """Put a class back."""
        self.classes[pod_class.key] = pod_class
        self._by_identity[identity] = pod_class.key
        self._identities[pod_class.key] = identity
        self._pods[pod_class.key] = pods
        self._constraints.class_known(pod_class)
