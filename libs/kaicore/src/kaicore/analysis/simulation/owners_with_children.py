"""Owners that have pods or other owned objects in the input, so that none are generated for them."""

from collections.abc import Sequence

from kaicore.analysis.simulation.identities import Located
from kaicore.kube.workloads import Object, derived_uid, group_of


class OwnersWithChildren:
    """Which owners have something in the input that is theirs."""

    def __init__(self, objects: Sequence[Located]) -> None:
        self._uids: dict[tuple[str, str, str, str], set[str]] = {}
        for item in objects:
            metadata = item.object["metadata"]
            references = metadata.get("ownerReferences")
            for reference in references if isinstance(references, list) else ():
                if not isinstance(reference, dict):
                    continue
                key = (
                    group_of(str(reference.get("apiVersion", ""))),
                    str(reference.get("kind", "")),
                    str(metadata["namespace"]),
                    str(reference.get("name", "")),
                )
                self._uids.setdefault(key, set()).add(str(reference.get("uid", "")))

    def include(self, owner: Object) -> bool:
        """Whether anything names this object as its owner; a uid that is derived was not written by a person."""
        metadata = owner["metadata"]
        kind = group_of(owner["apiVersion"]), owner["kind"]
        uids = self._uids.get((*kind, metadata["namespace"], metadata["name"]))
        if uids is None:
            return False
        derived = derived_uid(*kind, metadata["namespace"], metadata["name"])
        return metadata["uid"] == derived or "" in uids or metadata["uid"] in uids
