"""The page docs/reference/reasons.md, for `scripts/docs/reference.py`."""

import typing
from collections import Counter
from inspect import getdoc
from types import ModuleType

from kaicore.rules.events.reasons import group, making_room, node, numa, queue, reason
from kaicore.rules.events.reasons.base import CodedReason
from msgspec import structs

_HEAD = """# Reasons

A pod waits for one or more of these reasons. A cycle records them with classes of pods and with groups
(`CycleCompleted`, [0003](../decisions/0003-reasons-are-recorded-per-class.md)). They show in `kai why`, the API,
`kai simulate`, the condition `PodScheduled`, and the statuses and events of pods and groups.

- `code` names the reason. A field that is 0 or empty is left out.
- *Lasting*: no other pod's end removes it. The cluster or the pod must change.
- *Not of nodes*: no other node would change it. The condition's reason is the code, not `Unschedulable`, so
  autoscalers add no node in vain.

`kai why` adds the pod's request, the object meant and the closest node. It also proposes changes that make the pod
start ([a page of kai why](../how-to/ask.md#a-page-of-kai-why)). A test applies the first proposal for each reason:

```
research/train-0: pending, since 2026-11-22T00:53:57.042Z
  - 2 nodes short of nvidia.com/gpu: 4 needed, at most 2 free (such as gpu-1)
  - 1 node cordoned (such as gpu-2)
      research/train-0 asks for 8 cpu, 32Gi memory, 4 nvidia.com/gpu
would make research/train-0 start (6 of 7 changes were tried, on a copy of the state):
  + request at most 2 nvidia.com/gpu instead of 4 in research/train-0; then on gpu-1
  + uncordon node gpu-2; then on gpu-2
```
"""

_PARTS: dict[ModuleType, str] = {
    node: "Nodes, room, other pods, volumes and devices",
    numa: "NUMA zones",
    group: "The pod and its group",
    queue: "Queues",
    making_room: "Room that is made or kept, and remedies",
}


def members() -> tuple[type[CodedReason], ...]:
    """All reasons, in the order of the union."""
    reason_types: tuple[type[CodedReason], ...] = typing.get_args(reason.Reason)
    return reason_types


def reasons() -> str:
    """Every reason with its fields, as its struct has them.

    Raises:
        LookupError: a module with reasons has no part of the page.
    """
    left_out = {one.__module__ for one in members()} - {module.__name__ for module in _PARTS}
    if left_out:
        raise LookupError(f"no part of the page for {', '.join(sorted(left_out))}")
    common = _common_meanings()
    rows = "\n".join(f"- `{name}`: {meaning}" for name, meaning in common.items())
    parts = [
        _HEAD,
        f"## Fields of several reasons\n\nReasons in nodes have `nodes` and `example`, too.\n\n{rows}\n",
    ]
    for module, title in _PARTS.items():
        lines = [_line(one, common) for one in members() if one.__module__ == module.__name__]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


#: The meaning of fields that many reasons have, each for its own object; the struct has the particulars.
_EVIDENT = {
    "nodes": "how many nodes it holds for.",
    "example": "one of the nodes, pods or groups meant.",
    "resource": "the resource meant.",
    "need": "how much of it, or how many, are needed; resources in their unit.",
    "free": "how much, or how many, there are at most.",
    "detail": "the object, the setting or the text meant.",
    "until": "when it ends at the latest, microseconds since the epoch; 0 if not by time.",
    "since": "when it began, microseconds since the epoch.",
}


def _common_meanings() -> dict[str, str]:
    """The meaning of each field that several reasons have: the one that most of them give it."""
    fields = [(field.encode_name, _meaning(one, field.name)) for one in members() for field in structs.fields(one)]
    used = Counter(name for name, _ in fields)
    common = dict(_EVIDENT)
    for (name, meaning), _ in Counter(fields).most_common():
        if used[name] > 1:
            common.setdefault(name, meaning)
    return common


def _line(one: type[CodedReason], common: dict[str, str]) -> str:
    about = (getdoc(one) or "").partition("\n\n")[0].replace("\n", " ")
    marks = [mark for mark, holds in (("lasting", one.lasting), ("not of nodes", not one.of_nodes)) if holds]
    marked = f" *{', '.join(marks).capitalize()}.*" if marks else ""
    shown = []
    for field in structs.fields(one):
        name, meaning = field.encode_name, _meaning(one, field.name).rstrip(".")
        if name in ("nodes", "example"):
            continue
        alike = name in _EVIDENT or common.get(name, "").rstrip(".") == meaning
        shown.append(f"`{name}`" if alike else f"`{name}` ({meaning})")
    return f"- `{one.__name__}`: {about}{marked}" + (f" Fields: {'; '.join(shown)}." if shown else "")


def _meaning(one: type[CodedReason], name: str) -> str:
    for base in one.__mro__:
        meaning = _attributes(getdoc(base) or "").get(name)
        if meaning is not None:
            return meaning
    raise LookupError(f"{one.__name__}.{name} has no description")


def _attributes(text: str) -> dict[str, str]:
    """The attributes that a docstring describes."""
    described: dict[str, str] = {}
    name = ""
    for line in text.partition("Attributes:\n")[2].splitlines():
        if line.startswith("        "):
            described[name] += " " + line.strip()
        elif line.strip():
            name, _, meaning = line.strip().partition(": ")
            described[name] = meaning
    return described
