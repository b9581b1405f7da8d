"""The page docs/reference/reasons.md, for `scripts/reference.py`."""

import typing
from inspect import getdoc
from types import ModuleType

import msgspec
from kaicore.rules.reasons import (
    devices,
    eviction,
    group,
    node,
    numa,
    pods_nearby,
    promise,
    provisioning,
    queue,
    reason,
    remedy,
    topology,
)
from kaicore.rules.reasons.base import CodedReason

_HEAD = """# Reasons

Why a pod waits. A cycle records reasons with classes of pods and with groups (`CycleCompleted`, decision 0003).
`kai why`, the API, `kai simulate`, the condition `PodScheduled`, events of pods and statuses of groups say them in
words.

- `code` says which reason it is; the other fields are as the log and the API have them. A field that is 0 or empty is
  left out.
- *Lasting*: no other pod's end removes it. The pod waits for the cluster, or for itself, to be changed.
- *Not of nodes*: no other node would change it. So the condition's reason is the code and not `Unschedulable`, and
  autoscalers add nothing in vain.

`kai why` adds to each what the record does not say, for it is shared by many pods: what the pod asks for, of which
object is spoken, which node is closest. And it says what would make the pod start; for each reason here a test follows
what is said first, and sees the pod start ([a page of kai why](../how-to/ask.md#a-page-of-kai-why)):

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
    node: "Nodes and room",
    pods_nearby: "Other pods and volumes",
    devices: "Resource claims and devices",
    numa: "NUMA zones",
    group: "The pod and its group",
    topology: "Network topologies",
    queue: "Queues",
    eviction: "Eviction and moving",
    promise: "Reserved starts",
    provisioning: "Nodes that an autoscaler makes",
    remedy: "What would make it schedulable",
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
    parts = [_HEAD]
    for module, title in _PARTS.items():
        intro = (module.__doc__ or "").strip()
        parts.append(f"## {title}\n\n{intro}\n")
        parts += [_section(one) for one in members() if one.__module__ == module.__name__]
    return "\n".join(parts)


def _section(one: type[CodedReason]) -> str:
    about = (getdoc(one) or "").partition("\n\n")[0].replace("\n", " ")
    marks = [mark for mark, holds in (("lasting", one.lasting), ("not of nodes", not one.of_nodes)) if holds]
    text = f"### {one.__name__}\n\n{about}" + (f" *{', '.join(marks).capitalize()}.*" if marks else "") + "\n"
    rows = [f"| `{field.encode_name}` | {_meaning(one, field.name)} |" for field in msgspec.structs.fields(one)]
    return text + ("\n| field | meaning |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else "")


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
