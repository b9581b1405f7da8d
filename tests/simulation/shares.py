"""Shares of GPUs, held against the code: worked out from events and objects as plain JSON, as all of the checker."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

#: Where reservation pods are, and how they name their group.
NAMESPACE = "kai-resource-reservation"
GROUP = "runai-gpu-group"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_WHOLE = 1000


@dataclass(slots=True)
class OpenedGpu:
    """A GPU that was opened.

    Attributes:
        node: its node.
        name: of its reservation pod.
        closed: whether it is closed.
        parts: thousandths by uid of the pods that have a part.
    """

    node: str
    name: str
    closed: bool = False
    parts: dict[str, int] = field(default_factory=dict)


class Shares:
    """The opened GPUs of a cluster.

    Attributes:
        opened: by group.
        lost: nodes on which somebody has deleted a reservation pod by hand.
    """

    def __init__(self, wrong: Callable[[str], None]) -> None:
        """`wrong` takes what does not hold."""
        self.opened: dict[str, OpenedGpu] = {}
        self.lost: set[str] = set()
        self._wrong = wrong
        #: By uid of a pod, what its ConfigMaps tell it.
        self._told: dict[str, list[str]] = {}
        #: By group, the uids of the reservation pods that there are.
        self._reservations: dict[str, set[str]] = defaultdict(set)

    # --- the log ----------------------------------------------------------------------------------------------------

    def gpu_opened(self, body: Json) -> None:
        if body["group"] in self.opened:
            self._wrong(f"GPU group {body['group']} is opened twice")
        self.opened[body["group"]] = OpenedGpu(body["node"], body["name"])

    def gpu_closed(self, body: Json) -> None:
        """A GPU is closed, once, and when no pod has a part of it."""
        gpu = self.opened.get(body["group"])
        if gpu is None or gpu.closed:
            self._wrong(f"GPU group {body['group']} is closed, and is not open")
        elif gpu.parts:
            self._wrong(f"GPU group {body['group']} is closed, and {sorted(gpu.parts)} have parts of it")
        if gpu is not None:
            gpu.closed = True

    def placed(self, uid: str, name: str, body: Json) -> int:
        """A pod gets parts; returns how much of GPUs in thousandths."""
        self.release(uid)
        parts = body.get("gpus", ())
        if len({part["group"] for part in parts}) != len(parts):
            self._wrong(f"pod {name} gets two parts of one GPU")
        for part in parts:
            gpu = self.opened.get(part["group"])
            if gpu is None or gpu.closed or gpu.node != body["node"]:
                self._wrong(f"pod {name} gets a part of GPU group {part['group']}, which is not open on {body['node']}")
                continue
            gpu.parts[uid] = part["milli"]
            if (used := sum(gpu.parts.values())) > _WHOLE:
                self._wrong(f"GPU group {part['group']} is promised {used} thousandths, the last ones to pod {name}")
        return sum(part["milli"] for part in parts)

    def release(self, uid: str) -> None:
        for gpu in self.opened.values():
            gpu.parts.pop(uid, None)

    # --- the API server ---------------------------------------------------------------------------------------------

    def config_map_written(self, body: Json) -> None:
        """A pod learns its GPUs."""
        visible = (body.get("data") or {}).get(_VISIBLE)
        for owner in body["metadata"].get("ownerReferences", ()) if visible else ():
            self._told[owner["uid"]] = str(visible).split(",")

    def reservation_written(self, metadata: Json, node: str, *, gone: bool) -> None:
        """A reservation pod is made or is gone: one for each opened GPU, on its node."""
        group = metadata.get("labels", {}).get(GROUP, "")
        there = self._reservations[group]
        if gone:
            there.discard(metadata["uid"])
            return
        gpu = self.opened.get(group)
        if gpu is None or (gpu.node, gpu.name) != (node, metadata["name"]):
            self._wrong(f"reservation pod {metadata['name']} on {node} is of no opened GPU: {group}")
        there.add(metadata["uid"])
        if len(there) > 1:
            self._wrong(f"GPU group {group} has {len(there)} reservation pods")

    def check_devices(self, there: dict[str, str]) -> None:
        """Look at what pods on one node have learnt, when one more is bound; `there` has names by uid."""
        groups: dict[str, set[str]] = defaultdict(set)
        for uid, name in there.items():
            held = [group for group, gpu in self.opened.items() if uid in gpu.parts]
            node = {self.opened[group].node for group in held}
            if not held or node & self.lost:
                continue
            told = self._told.get(uid, [])
            if len(set(told)) != len(held):
                self._wrong(f"pod {name} is bound with parts of {len(held)} GPUs, and was told {told}")
            if len(held) == 1:
                groups[told[0] if told else ""].update(held)
        for device, several in groups.items():
            if len(several) > 1:
                self._wrong(f"GPU {device} is that of the groups {sorted(several)}: it was opened twice")

    def check_end(self) -> None:
        """No GPU is open in the end, and none is held."""
        for group, gpu in self.opened.items():
            if not gpu.closed:
                self._wrong(f"GPU group {group} on {gpu.node} is open in the end")
        for group, pods in self._reservations.items():
            if pods:
                self._wrong(f"GPU group {group} has reservation pods in the end: {sorted(pods)}")
