"""Manifests from design documents that no API server accepts: they are read as intended, with a warning.

Sources: the example manifests of Volcano's design of network topologies (Jobs of `topology.volcano.sh`, members of
HyperNodes by `name` and `type`) and of Koordinator's documentation (kinds in small letters, a gang's groups as a list).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from kaicore.analysis.simulation.identities import Located
from kaicore.kube.workloads import Object, group_of
from kaicore.rules.groups.gang import GANG

_encoder = msgspec.json.Encoder()

_GROUPS = f"{GANG}/groups"
_DRAFT_GROUP, _SERVED_JOB = "topology.volcano.sh", "batch.volcano.sh/v1alpha1"


def as_served(item: Located) -> tuple[Located, Sequence[str]]:
    """Return an object as an API server would take it, and a warning for each thing that it would have refused.

    Args:
        item: an object with texts as apiVersion and kind; it is not changed.
    """
    warnings: list[str] = []
    wire = item.object
    if wire["apiVersion"] == "v1" and wire["kind"] in ("pod", "node"):
        warnings.append(f"kind {wire['kind']} is read as {wire['kind'].title()}")
        wire = {**wire, "kind": wire["kind"].title()}
    if (group_of(wire["apiVersion"]), wire["kind"]) == (_DRAFT_GROUP, "Job"):
        warnings.append(f"a Job of {wire['apiVersion']} is read as one of {_SERVED_JOB}")
        wire = {**wire, "apiVersion": _SERVED_JOB}
    wire = _with_texts(wire, warnings)
    if (group_of(wire["apiVersion"]), wire["kind"]) == (_DRAFT_GROUP, "HyperNode"):
        wire = _with_selectors(wire, warnings)
    name = wire["metadata"].get("name") if isinstance(wire.get("metadata"), dict) else None
    about = f"{item.where}: {wire['kind']} {name}" if isinstance(name, str) else item.where
    return Located(item.where, wire), [f"{about}: {said}; an API server takes no such thing" for said in warnings]


def _with_texts(wire: Object, warnings: list[str]) -> Object:
    """Make the list of a gang's groups into a text; other annotations that are no texts are faults."""
    metadata = wire.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(annotations, dict):
        return wire
    groups = annotations.get(_GROUPS)
    if not isinstance(groups, list):
        return wire
    warnings.append(f"metadata.annotations[{_GROUPS}] is a list, and is read as text")
    texts = {**annotations, _GROUPS: _encoder.encode(groups).decode()}
    return {**wire, "metadata": {**metadata, "annotations": texts}}


def _with_selectors(wire: Object, warnings: list[str]) -> Object:
    """Make members of a HyperNode that have a name into members with a selector."""
    spec = wire.get("spec")
    members = spec.get("members") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(members, list):
        return wire
    selected = [_with_selector(member) for member in members]
    if selected == members:
        return wire
    warnings.append("members by name are read as members with selector.exactMatch.name")
    return {**wire, "spec": {**spec, "members": selected}}


def _with_selector(member: Any) -> Any:
    if not isinstance(member, dict) or "selector" in member or not isinstance(member.get("name"), str):
        return member
    others = {key: value for key, value in member.items() if key != "name"}
    return {**others, "selector": {"exactMatch": {"name": member["name"]}}}
