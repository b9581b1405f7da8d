"""`meta.k8s.io/v1` Tables: columns and cells of the built-in kinds, and of custom kinds by their printer columns.

Descriptions are this server's own, shorter than the real one's. Of JSONPath it has the part that printer columns use:
fields, indexes, `[-1:]`, `[*]`, and `[?(@.type=="Ready")]`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from kai_apiserver.objects import (
    Object,
    age,
    at,
    encode_json,
    find_condition,
    holds,
    parse_time,
    short_duration,
    split_path,
)
from kai_apiserver.resources.registry import ResourceType
from kai_apiserver.rest.backend import encode, shown
from kai_apiserver.rest.listing import Page
from kai_apiserver.store import Event, EventType, Stored

_STEP = re.compile(
    r"\.(?P<field>(?:[^.\[\]\\]|\\.)+)"
    r"|\[(?P<index>-?\d+)\]"
    r"|\[(?P<first>-?\d+):\]"
    r"|(?P<all>\[\*\]|\.\*)"
    r"|\[['\"](?P<quoted>[^'\"]+)['\"]\]"
    r"|\[\?\(@\.(?P<key>[^=!<>\s]+)\s*(?P<op>==|!=)\s*['\"]?(?P<value>[^'\")]*)['\"]?\)\]"
)
_Step = tuple[str, Any]


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[_Step, ...]:
    text = path if path.startswith((".", "[")) else f".{path}"
    steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            return (("nothing", None),)
        position = match.end()
        if match["all"]:
            steps.append(("all", None))
        elif match["index"]:
            steps.append(("index", int(match["index"])))
        elif match["first"]:
            steps.append(("from", int(match["first"])))
        elif match["key"]:
            steps.append(("filter", (tuple(match["key"].split(".")), match["op"] == "==", match["value"])))
        else:
            steps.append(("field", match["quoted"] or match["field"].replace("\\", "")))
    return tuple(steps)


def find(value: Any, path: str) -> list[Any]:
    """Everything at `path`; nothing where the path cannot be read."""
    matches = [value]
    for kind, argument in _steps(path):
        matches = [below for item in matches for below in _step(item, kind, argument)]
    return matches


def _step(value: Any, kind: str, argument: Any) -> list[Any]:
    if kind == "field":
        return [value[argument]] if isinstance(value, dict) and argument in value else []
    if kind == "all":
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if not isinstance(value, list):
        return []
    if kind == "index":
        return value[argument : argument + 1 or None]
    if kind == "from":
        return value[argument:]
    if kind == "filter":
        keys, equal, wanted = argument
        return [item for item in value if (_text(item, keys) == wanted) is equal]
    return []


def _text(item: Any, keys: tuple[str, ...]) -> str | None:
    for key in keys:
        item = item.get(key) if isinstance(item, dict) else None
    if item is None:
        return None
    return str(item).lower() if isinstance(item, bool) else str(item)


Timed = Callable[[datetime], str]


def _sidecars(pod: Object) -> set[str]:
    return {
        container["name"]
        for container in pod["spec"].get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }


def _statuses(pod: Object) -> list[Object]:
    """The statuses of the containers and sidecars."""
    sidecars, status = _sidecars(pod), pod.get("status") or {}
    of_sidecars = (one for one in status.get("initContainerStatuses") or () if one.get("name") in sidecars)
    return [*(status.get("containerStatuses") or ()), *of_sidecars]


def ready(pod: Object) -> str:
    """`ready/all` of the containers and sidecars."""
    total = len(pod["spec"].get("containers") or ()) + len(_sidecars(pod))
    return f"{sum(1 for item in _statuses(pod) if item.get('ready'))}/{total}"


def restarts(pod: Object) -> str | Timed:
    """The containers' number of restarts, and the last one's time."""
    counted = _statuses(pod)
    count = sum(item.get("restartCount", 0) for item in counted)
    ends = [at(item, ("lastState", "terminated", "finishedAt")) for item in counted]
    last = max(filter(None, ends), default=None)
    return (lambda now: f"{count} ({age(last, now)} ago)") if count and last else str(count)


def status_word(pod: Object) -> str:
    """One word (or two) for the pod's state: its phase, or what stands in the way."""
    status = pod.get("status") or {}
    phase: str = status.get("phase", "")
    word: str = status.get("reason") or phase
    if find_condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    initializing = _init_word(pod, status)
    word = initializing or _container_word(status, word)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if phase not in ("Failed", "Succeeded"):
            return "Terminating"
    return word


def _init_word(pod: Object, status: Object) -> str:
    sidecars = _sidecars(pod)
    all_init = pod["spec"].get("initContainers") or ()
    for index, item in enumerate(status.get("initContainerStatuses") or ()):
        state = item.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if item.get("name") in sidecars and item.get("started"):
            continue
        if terminated is not None:
            return f"Init:{_end_word(terminated)}"
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(all_init)}"
    return ""


def _container_word(status: Object, word: str) -> str:
    running = False
    for item in reversed(status.get("containerStatuses") or ()):
        state: Any = item.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            word = state["waiting"]["reason"]
        elif state.get("terminated"):
            word = _end_word(state["terminated"])
        elif item.get("ready") and state.get("running"):
            running = True
    if word == "Completed" and running:
        return "Running" if holds({"status": status}, "Ready") else "NotReady"
    return word


def _end_word(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def readiness_gates(pod: Object) -> str:
    """`met/all` of the readiness gates."""
    gates = pod["spec"].get("readinessGates") or ()
    if not gates:
        return "<none>"
    met = sum(holds(pod, gate["conditionType"]) for gate in gates)
    return f"{met}/{len(gates)}"


#: The value for one object; a function of the time where it depends on that.
Cell = Callable[[Object], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        kind: `string`, `integer`, `date` or `boolean`.
        wide: shown only with `-o wide`.
        shape: `name` for the name's column.
    """

    name: str
    cell: Cell
    kind: str = "string"
    wide: bool = False
    description: str = ""
    shape: str = ""


def at_path(path: str, absent: Any = "<none>") -> Cell:
    """The value at a dotted path."""
    parts = split_path(path)

    def cell(obj: Object) -> Any:
        value = at(obj, parts)
        return absent if value is None or value == "" else value

    return cell


def age_at(path: str) -> Cell:
    """The age of the time at a dotted path."""
    parts = split_path(path)
    return lambda obj: lambda now: age(at(obj, parts), now)


NAME = Column("Name", at_path("metadata.name", ""), shape="name", description="Name of the object.")
AGE = Column("Age", age_at("metadata.creationTimestamp"), description="Time since the object was created.")
CREATED = Column(
    "Created At", at_path("metadata.creationTimestamp"), "date", description="When the object was created."
)


def _labels(selector: Object | None) -> str:
    labels = (selector or {}).get("matchLabels") if selector and "matchLabels" in selector else selector
    return (
        ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items()) if isinstance(value, str))
        or "<none>"
    )


def _node_status(node: Object) -> str:
    ready = find_condition(node, "Ready").get("status")
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    if node["spec"].get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in node["metadata"].get("labels") or {} if key.startswith(prefix))
    return ",".join(roles) or "<none>"


def _node_address(kind: str) -> Cell:
    def cell(node: Object) -> str:
        addresses = node["status"].get("addresses") or ()
        return next((item["address"] for item in addresses if item["type"] == kind), "<none>")

    return cell


def _job_status(job: Object) -> str:
    def first(*kinds: str) -> str:
        return next((kind for kind in kinds if holds(job, kind)), "")

    going = "Terminating" if job["metadata"].get("deletionTimestamp") else ""
    return (
        first("Complete", "Failed") or going or first("Suspended", "FailureTarget", "SuccessCriteriaMet") or "Running"
    )


def _job_completions(job: Object) -> str:
    done = job["status"].get("succeeded", 0)
    if job["spec"].get("completions") is not None:
        return f"{done}/{job['spec']['completions']}"
    parallelism = job["spec"].get("parallelism", 0)
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _job_duration(job: Object) -> str | Timed:
    started = job["status"].get("startTime")
    if not started:
        return ""
    ended = job["status"].get("completionTime")
    return lambda now: short_duration((parse_time(ended) if ended else now) - parse_time(started))


def _images(template: str, field: str) -> Cell:
    parts = split_path(template)

    def cell(obj: Object) -> str:
        return ",".join(item.get(field, "") for item in at(obj, parts) or ()) or "<none>"

    return cell


def _selector(path: str) -> Cell:
    parts = split_path(path)
    return lambda obj: _labels(at(obj, parts))


def _event_object(event: Object) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_seen(event: Object) -> Timed:
    seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return lambda now: age(seen, now)


def _service_ports(service: Object) -> str:
    ports = service["spec"].get("ports") or ()
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _ready_of(done: str, wanted: str) -> Cell:
    done_parts, wanted_parts = split_path(done), split_path(wanted)
    return lambda obj: f"{at(obj, done_parts) or 0}/{at(obj, wanted_parts) or 0}"


_WORKLOAD = (
    Column("Containers", _images("spec.template.spec.containers", "name"), wide=True),
    Column("Images", _images("spec.template.spec.containers", "image"), wide=True),
    Column("Selector", _selector("spec.selector"), wide=True),
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": (
        NAME,
        Column("Ready", ready, description="Containers that are ready, of all."),
        Column("Status", status_word, description="The pod's phase, or what stands in its way."),
        Column("Restarts", restarts, description="Restarts of its containers, and when the last was."),
        AGE,
        Column("IP", at_path("status.podIP"), wide=True, description="Address of the pod."),
        Column("Node", at_path("spec.nodeName"), wide=True, description="Node the pod is bound to."),
        Column(
            "Nominated Node",
            at_path("status.nominatedNodeName"),
            wide=True,
            description="Node on which room is being made for the pod.",
        ),
        Column("Readiness Gates", readiness_gates, wide=True, description="Readiness gates met, of all."),
    ),
    "nodes": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", at_path("status.nodeInfo.kubeletVersion", "")),
        Column("Internal-IP", _node_address("InternalIP"), wide=True),
        Column("External-IP", _node_address("ExternalIP"), wide=True),
        Column("OS-Image", at_path("status.nodeInfo.osImage", "<unknown>"), wide=True),
        Column("Kernel-Version", at_path("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        Column("Container-Runtime", at_path("status.nodeInfo.containerRuntimeVersion", "<unknown>"), wide=True),
    ),
    "jobs.batch": (
        NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        AGE,
        *_WORKLOAD,
    ),
    "namespaces": (NAME, Column("Status", at_path("status.phase", "")), AGE),
    "events": (
        Column("Last Seen", _event_seen),
        Column("Type", at_path("type", "")),
        Column("Reason", at_path("reason", "")),
        Column("Object", _event_object),
        Column("Message", lambda event: (event.get("message") or "").strip()),
        Column("Source", at_path("source.component", ""), wide=True),
        Column("Name", at_path("metadata.name", ""), wide=True, shape="name"),
    ),
    "services": (
        NAME,
        Column("Type", at_path("spec.type", "")),
        Column("Cluster-IP", at_path("spec.clusterIP")),
        Column("External-IP", lambda obj: "<none>"),
        Column("Port(s)", _service_ports),
        AGE,
        Column("Selector", _selector("spec.selector"), wide=True),
    ),
    "leases.coordination.k8s.io": (NAME, Column("Holder", at_path("spec.holderIdentity", "")), AGE),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Column("Value", at_path("value", 0), "integer"),
        Column("Global-Default", lambda obj: bool(obj.get("globalDefault")), "boolean"),
        AGE,
        Column("PreemptionPolicy", at_path("preemptionPolicy")),
    ),
    "poddisruptionbudgets.policy": (
        NAME,
        Column("Min Available", at_path("spec.minAvailable", "N/A")),
        Column("Max Unavailable", at_path("spec.maxUnavailable", "N/A")),
        Column("Allowed Disruptions", at_path("status.disruptionsAllowed", 0), "integer"),
        AGE,
    ),
    "deployments.apps": (
        NAME,
        Column("Ready", _ready_of("status.readyReplicas", "spec.replicas")),
        Column("Up-to-date", at_path("status.updatedReplicas", 0), "integer"),
        Column("Available", at_path("status.availableReplicas", 0), "integer"),
        AGE,
        *_WORKLOAD,
    ),
    "replicasets.apps": (
        NAME,
        Column("Desired", at_path("spec.replicas", 0), "integer"),
        Column("Current", at_path("status.replicas", 0), "integer"),
        Column("Ready", at_path("status.readyReplicas", 0), "integer"),
        AGE,
        *_WORKLOAD,
    ),
    "statefulsets.apps": (
        NAME,
        Column("Ready", _ready_of("status.readyReplicas", "spec.replicas")),
        AGE,
        *_WORKLOAD[:2],
    ),
    "persistentvolumeclaims": (
        NAME,
        Column("Status", at_path("status.phase", "")),
        Column("Volume", at_path("spec.volumeName", "")),
        Column("StorageClass", at_path("spec.storageClassName", "")),
        AGE,
    ),
    "persistentvolumes": (
        NAME,
        Column("Capacity", at_path("spec.capacity.storage", "")),
        Column("Reclaim Policy", at_path("spec.persistentVolumeReclaimPolicy", "")),
        Column("Status", at_path("status.phase", "")),
        AGE,
    ),
}

#: Columns of built-in kinds that have none of their own.
DEFAULT_COLUMNS = (NAME, CREATED)


def columns_of(resource: ResourceType) -> tuple[Column, ...]:
    """The columns of a resource's table."""
    if resource.custom is None:
        return COLUMNS.get(resource.storage, DEFAULT_COLUMNS)
    given = resource.custom.columns
    return (NAME, *(_custom_column(column) for column in given)) if given else (NAME, AGE)


def _custom_column(given: Object) -> Column:
    path, kind = given["jsonPath"], given["type"]

    def cell(obj: Object) -> Any:
        values = [value for value in find(obj, path) if value is not None]
        if kind == "date":
            return lambda now: age(values[0] if values else None, now)
        if not values:
            return None
        if kind == "string":
            return " ".join(str(value) for value in values)
        return values[0]

    return Column(
        given["name"],
        cell,
        kind,
        wide=given.get("priority", 0) > 0,
        description=given.get("description") or f"Custom resource definition column (in JSONPath format): {path}",
        shape=given.get("format", ""),
    )


def partial_metadata(obj: Object) -> Object:
    """An object reduced to its metadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _as_of(now: datetime, value: Any) -> Any:
    return value(now) if callable(value) else value


def table(
    resource: ResourceType,
    items: Iterable[Stored],
    list_metadata: Object,
    *,
    now: datetime,
    include: str = "Metadata",
    headings: bool = True,
) -> Object:
    """A Table of objects; `include` is how much of each object goes with its row: None, Metadata or Object."""
    columns = columns_of(resource)
    definitions = [
        {
            "name": column.name,
            "type": column.kind,
            "format": column.shape,
            "description": column.description,
            "priority": int(column.wide),
        }
        for column in columns
    ]
    rows = []
    for stored in items:
        stored_form = stored.decode()
        row: Object = {"cells": [_as_of(now, column.cell(stored_form)) for column in columns]}
        if include == "Object":
            row["object"] = shown(stored, resource)
        elif include == "Metadata":
            row["object"] = partial_metadata(stored_form)
        rows.append(row)
    built: Object = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata}
    if headings:
        built["columnDefinitions"] = definitions
    built["rows"] = rows
    return built


_META = "meta.k8s.io"


@dataclass(frozen=True, slots=True)
class View:
    """The form that a client's Accept header asks for.

    Attributes:
        resource: objects are shown in its version.
        form: `Object`, `Table` or `PartialObjectMetadata`.
        include: for Tables, how much of the objects goes with the rows.
        now: the time, for ages.
    """

    resource: ResourceType
    form: str
    include: str
    now: Callable[[], datetime]

    @classmethod
    def read(cls, resource: ResourceType, accept: str, *, include: str, now: Callable[[], datetime]) -> "View":
        """Read an Accept header: the first form in it that is known."""
        for choice in accept.split(","):
            parameters = dict(part.strip().split("=", 1) for part in choice.split(";")[1:] if "=" in part)
            wanted = parameters.get("as", "")
            if wanted == "Table" and parameters.get("g") == _META:
                return cls(resource, "Table", include or "Metadata", now)
            if wanted.startswith("PartialObjectMetadata") and parameters.get("g") == _META:
                return cls(resource, "PartialObjectMetadata", "", now)
            if not wanted and choice.strip():
                break
        return cls(resource, "Object", "", now)

    def one(self, stored: Stored, *, headings: bool = True) -> bytes:
        """An object alone."""
        if self.form == "Object":
            return encode(stored, self.resource)
        if self.form == "PartialObjectMetadata":
            return encode_json(partial_metadata(stored.decode()))
        metadata = {"resourceVersion": str(stored.rv)}
        return encode_json(
            table(self.resource, [stored], metadata, now=self.now(), include=self.include, headings=headings)
        )

    def many(self, page: Page) -> Iterator[bytes]:
        """A list, in pieces."""
        metadata: Object = {"resourceVersion": str(page.rv)}
        if page.token:
            metadata["continue"] = page.token
        if page.remaining:
            metadata["remainingItemCount"] = page.remaining
        if self.form == "Table":
            yield encode_json(table(self.resource, page.items, metadata, now=self.now(), include=self.include))
            return
        if self.form == "PartialObjectMetadata":
            kind, api_version = "PartialObjectMetadataList", f"{_META}/v1"
        else:
            kind, api_version = self.resource.list_kind_name, self.resource.api_version
        yield encode_json({"kind": kind, "apiVersion": api_version, "metadata": metadata})[:-1] + b',"items":['
        yield from self._items(page.items)
        yield b"]}"

    def _items(self, items: list[Stored]) -> Iterator[bytes]:
        """The objects of a list, a few hundred joined at a time."""
        for first in range(0, len(items), 256):
            some = items[first : first + 256]
            joined = b",".join(map(self._item, some))
            yield b"," + joined if first else joined

    def _item(self, stored: Stored) -> bytes:
        if self.form == "PartialObjectMetadata":
            return encode_json(partial_metadata(stored.decode()))
        if self.resource.custom is not None:
            return self.resource.prefix + stored.body[1:]
        if self.resource.from_storage is not None:
            return encode_json(self.resource.from_storage(stored.decode()))
        return stored.body

    def line(self, seen: EventType, event: Event, *, headings: bool = False) -> bytes:
        """A watch event, encoded once for all who see it alike."""
        if self.form == "Table":
            return self._line(seen, event, headings=headings)
        key = (self.resource.api_version, self.form, seen)
        line = event.lines.get(key)
        if line is None:
            line = event.lines[key] = self._line(seen, event, headings=False)
        return line

    def _line(self, seen: EventType, event: Event, *, headings: bool) -> bytes:
        stored = event.stored
        if seen is EventType.DELETED and event.type is not EventType.DELETED and event.previous is not None:
            stored = event.previous.at_version(event.rv)  # the last state that this watcher may see
        return b'{"type":"%s","object":%s}\n' % (seen.value.encode(), self.one(stored, headings=headings))

    def bookmark(self, rv: int, *, initial_events_end: bool = False) -> bytes:
        """A BOOKMARK event: everything up to `rv` was seen."""
        metadata: Object = {"resourceVersion": str(rv)}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.form == "Object":
            obj: Object = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": metadata}
        else:
            obj = {"kind": self.form, "apiVersion": f"{_META}/v1", "metadata": metadata}
            if self.form == "Table":
                obj["rows"] = []
        return b'{"type":"BOOKMARK","object":%s}\n' % encode_json(obj)
