"""Reports of exporters, checked, and ingest's answers; `docs/explanation/exporter.md` describes the format.

A report that is not of the format is refused as a whole, with each field and value that is wrong. Of a report that is,
every pod is checked by itself, so that one impossible pod does not keep the others from being recorded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from kaicore.errors import InvalidObject
from kaicore.rules.model.quantity import MAX_AMOUNT
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

#: Pods in one report at most: far more than kubelets run.
MAX_PODS = 5000

_Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
_Uid = Annotated[str, StringConstraints(max_length=128, pattern=r"^[-A-Za-z0-9.]*$")]
_Zone = Annotated[str, StringConstraints(max_length=63, pattern=r"^node-(0|[1-9][0-9]*)$")]
_Resource = Annotated[
    str, StringConstraints(min_length=1, max_length=317, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")
]
_Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]


class _Model(BaseModel):
    # Fields that a later exporter may add are not looked at.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class ZoneReport(_Model):
    """Amounts of one zone: millicores, bytes, counts."""

    zone: _Zone
    amount: dict[_Resource, _Amount]


def _several(zones: list[str]) -> list[str]:
    if len(zones) < 2 or len(set(zones)) != len(zones):
        raise ValueError("a span has two zones or more, each once")
    return zones


class SpanReport(_Model):
    """Amounts that lie somewhere in several zones."""

    zones: Annotated[list[_Zone], AfterValidator(_several)]
    amount: dict[_Resource, _Amount]


def _once(zones: list[ZoneReport]) -> list[ZoneReport]:
    if len({zone.zone for zone in zones}) != len(zones):
        raise ValueError("a zone is named twice")
    return zones


class ContainerReport(_Model):
    """One container's holdings; without a name, the pod's own as a whole."""

    name: _Name | Literal[""]
    zones: Annotated[list[ZoneReport], AfterValidator(_once)] = []
    spans: list[SpanReport] = []


def _apart(containers: list[ContainerReport]) -> list[ContainerReport]:
    if len({container.name for container in containers}) != len(containers):
        raise ValueError("a container is named twice")
    return containers


_Containers = Annotated[list[ContainerReport], Field(max_length=500), AfterValidator(_apart)]


class PodReport(_Model):
    """A pod's holdings.

    Attributes:
        uid: empty where the exporter does not know it, for podresources v1 does not tell.
        containers: those that run long.
        init_containers: what ordinary init containers keep beyond that, None where the exporter does not know.
        checked: the kubelet's state files say the same as podresources.
        again: it was accepted before, and the kubelet has said the same since.
    """

    namespace: _Name
    name: _Name
    uid: _Uid = ""
    containers: _Containers
    init_containers: _Containers | None = None
    checked: bool = False
    again: bool = False

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        _apart([*self.containers, *(self.init_containers or ())])
        return self


class Report(_Model):
    """One exporter's observations of its node; `pods` are checked one by one, by `read_pod`.

    Attributes:
        instance: the exporter's, new with each of its starts.
        sequence: rises with each report of an instance about the node.
        observed_at: when the kubelet was asked, microseconds since the epoch by the node's clock.
        full: every pod of the node with known holdings is in it.
    """

    version: Literal[1]
    node: _Name
    instance: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[-A-Za-z0-9]+$")]
    sequence: Annotated[int, Field(ge=1, lt=2**53)]
    observed_at: Annotated[int, Field(ge=1, lt=2**62)]
    full: bool = False
    pods: Annotated[list[Any], Field(max_length=MAX_PODS)]


class Reports(_Model):
    """Reports of several nodes; each is checked by itself, by `read_report`."""

    reports: Annotated[list[Any], Field(max_length=MAX_PODS)]


def decode_report(body: bytes, *, node: str) -> Report:
    """Read the report of a node. Raises InvalidObject: naming the node, and each field and value that is wrong."""
    subject = f"report of Node {node}"
    with _checking(subject):
        report = Report.model_validate_json(body)
    if report.node != node:
        raise InvalidObject(subject, "node", shown(report.node), "is not the node of the path")
    return report


def decode_reports(body: bytes) -> list[Any]:
    """Read the envelope of several nodes' reports. Raises InvalidObject: naming each field and value that is wrong."""
    with _checking("reports"):
        return Reports.model_validate_json(body).reports


def read_report(value: object) -> Report:
    """Check one of several reports. Raises InvalidObject: naming the node, and each field and value that is wrong."""
    node = value.get("node") if isinstance(value, dict) else None
    with _checking(f"report of Node {shown(node)}"):
        return Report.model_validate(value)


def read_pod(value: object, *, node: str) -> PodReport:
    """Check one pod of a report. Raises InvalidObject: naming the pod, and each field and value that is wrong."""
    with _checking(f"report of Node {node}: Pod {'/'.join(pod_name(value))}"):
        return PodReport.model_validate(value)


def pod_name(value: object) -> tuple[str, str]:
    """Return namespace and name of what should be a pod, as far as they can be made out, for answers and logs."""
    if not isinstance(value, dict):
        return "?", "?"
    return shown(value.get("namespace")), shown(value.get("name"))


def shown(value: object) -> str:
    """Return a value as a log line can bear it: short."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 253 else f"{text[:250]}..."


@contextmanager
def _checking(subject: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise _invalid(error, subject) from None


def _invalid(error: ValidationError, subject: str) -> InvalidObject:
    """Make one error of pydantic's: the first field in full, the others by name."""
    first, *others = error.errors(include_url=False, include_context=False)
    problem = first["msg"].removeprefix("Value error, ")
    if others:
        more = [_path(item["loc"]) for item in others[:5]]
        problem += f" (and {len(others)} more: {', '.join(more)})"
    value = first.get("input")
    return InvalidObject(
        subject, _path(first["loc"]) or "body", value if isinstance(value, int) else shown(value), problem
    )


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if part == "[key]":
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return shown(path)
