"""The webhook's route: the question of an API server (Kubernetes 1.36, `admission.k8s.io/v1`), and the answer.

An object is judged by the rules with which the watcher and the scheduler read it. It is denied when the dialect's own
project denies it as well, or when it cannot be meant for pods of ours.

Everything else that will not work is a warning: the named object may be created later, or another scheduler may be
meant.

A pod that asks for a share of a GPU is denied where it contradicts itself, else completed. Virtual GPUs of other
projects become a share in KAI-Scheduler's words first. As KAI-Scheduler's admission does it
(`pkg/admission/webhook/v1alpha2/gpusharing`), so that the programs of its devices' side find what they expect.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from kaicore.errors import InvalidObject, OverlappingDomains
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import group_kind, topology_kind
from kaicore.kube.normalize.gpu_shares import Document, sharing_patch
from kaicore.kube.normalize.share_dialects import gpu_share, translated
from kaicore.kube.wire.objects import PodSpec
from kaicore.rules.events.reasons.group import TopologyConstraintInvalid
from kaicore.rules.model import node
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.node import HYPER_NODE, HyperNode
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER, Wire
from kaicore.rules.topology.book import TopologyBook, TopologyKey
from kaicore.rules.topology.paths import HyperNodePaths
from kaicore.rules.topology.resolve import resolve
from kaicore.runtime.service import Health
from kaicore.runtime.service.health import Asgi, with_health
from kaicore.runtime.service.http_errors import add_error_handlers
from msgspec.structs import replace
from prometheus_client import Counter

#: Letters and digits that tell the ConfigMaps of one owner's pods from each other, as many as KAI has.
_DISTINCTION = 7


class _Meta(Wire):
    name: str = ""
    generate_name: str = ""
    annotations: dict[str, str] | None = None


class _NewPod(Wire):
    """As much of a pod as tells its share; it may have no name yet."""

    metadata: _Meta
    spec: PodSpec


_pod_decoder = msgspec.json.Decoder(_NewPod)


def admitted(body: bytes, *, namespace: str, request_uid: str, scheduler_name: str) -> list[Document]:
    """Return what is added to a new pod, as a JSON Patch; nothing to one without a share, or of another scheduler.

    Args:
        request_uid: of the API server's question; it tells the pod from others.
        scheduler_name: of the pods that are ours.

    Raises:
        InvalidObject: it asks for what no GPU can give, naming object, field and value.
    """
    try:
        pod = _pod_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidObject("Pod", "body", body[:80], str(error)) from error
    if pod.spec.scheduler_name != scheduler_name:
        return []
    document: dict[str, Any] = msgspec.json.decode(body)
    document["metadata"] = {**document["metadata"], "namespace": namespace}
    after = translated(document)
    patch = list(_changes(document, after))
    pod = msgspec.convert(after, _NewPod)
    subject = f"Pod {namespace}/{pod.metadata.name or pod.metadata.generate_name}"
    if gpu_share(pod.metadata.annotations or {}, pod.spec, subject=subject) is not None:
        patch += sharing_patch(after, sha256(request_uid.encode()).hexdigest()[:_DISTINCTION])
    return patch


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Document]:
    """Yield what makes a pod the translated one: containers and annotations."""
    if after is before:
        return
    for key in ("containers", "initContainers"):
        for number, container in enumerate(after["spec"].get(key) or ()):
            if container != before["spec"][key][number]:
                yield {"op": "replace", "path": f"/spec/{key}/{number}", "value": container}
    if annotations := after["metadata"]["annotations"]:
        yield {"op": "add", "path": "/metadata/annotations", "value": annotations}


#: Nodes of one HyperNode of which it is looked whether they are in others too, and such nodes that are shown.
_MOST_NODES, _MOST_OVERLAPS = 500, 3


@dataclass(slots=True)
class Judgement:
    """The problems of an object.

    Attributes:
        denials: for which it is refused.
        warnings: which its author is shown.
    """

    denials: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def judge(
    api_version: str, kind: str, body: bytes, *, topologies: TopologyBook | None, scheduler_name: str
) -> Judgement:
    """Judge an object; nothing is wrong with one of a kind that is not read.

    Args:
        topologies: those that there are; None where that is not known.
        scheduler_name: of the pods that are ours.
    """
    if (row := topology_kind(api_version, kind)) is not None:
        return _judge_topology(row, body, topologies)
    if (row := group_kind(api_version, kind)) is not None:
        return _judge_group(row, body, topologies, scheduler_name)
    return Judgement()


def _judge_topology(row: Kind[Any], body: bytes, topologies: TopologyBook | None) -> Judgement:
    problems: list[InvalidObject] = []
    left_out: list[InvalidObject] = []
    model = None
    try:
        model = row.normalize(row.decode(body), left_out.append)
    except InvalidObject as error:
        problems.append(error)
    judgement = Judgement()
    match row.name:
        case node.HYPER_NODE:
            judgement.denials += map(str, [*problems, *left_out])
        case node.CLUSTER_NETWORK_TOPOLOGY:
            # Nothing of Koordinator's looks at one before it is used.
            judgement.warnings += [f"{error}; the topology is not used" for error in problems]
            judgement.warnings += [f"{error}; it is left out" for error in left_out]
        case _:
            judgement.denials += map(str, problems)
            judgement.warnings += [f"{error}; it is left out" for error in left_out]
    if isinstance(model, HyperNode) and topologies is not None and not judgement.denials:
        judgement.warnings += _among_others(model, topologies)
    return judgement


def _among_others(hyper_node: HyperNode, topologies: TopologyBook) -> Iterator[str]:
    """Yield what a HyperNode and the others contradict each other in."""
    hyper_nodes = {**topologies.hyper_nodes, hyper_node.name: hyper_node}
    paths = HyperNodePaths(hyper_nodes.values())
    before = topologies.paths(TopologyKey(HYPER_NODE, "")).problems if topologies.hyper_nodes else ()
    for problem in paths.wrong:
        if problem.text not in before:
            yield f"{problem.text}; no HyperNode is used until that is mended"
    if not paths.wrong:
        yield from _overlaps(hyper_node, paths, topologies)


def _overlaps(hyper_node: HyperNode, paths: HyperNodePaths, topologies: TopologyBook) -> Iterator[str]:
    members = tuple(member for member in hyper_node.members if not member.hyper_node)
    alone = HyperNodePaths([replace(hyper_node, members=members)])
    inside = overlaps = 0
    for name, labels in topologies.nodes.items():
        if not alone.path(name, labels):
            continue
        inside += 1
        try:
            paths.path(name, labels)
        except OverlappingDomains as error:
            overlaps += 1
            yield f"{error}; it is in none of them until that is mended"
        if inside >= _MOST_NODES or overlaps >= _MOST_OVERLAPS:
            return


def _judge_group(row: Kind[Any], body: bytes, topologies: TopologyBook | None, scheduler_name: str) -> Judgement:
    names = set(_scheduler_names(msgspec.json.decode(body)))
    if names and scheduler_name not in names:
        return Judgement()
    judgement = Judgement()
    try:
        source = row.normalize(row.decode(body), lambda error: judgement.warnings.append(f"{error}; it is left out"))
    except InvalidObject as error:
        judgement.warnings.append(f"{error}; its pods do not start")
        return judgement
    assert isinstance(source, GroupSource)
    for template in source.templates:
        group = f"{source.kind.partition('.')[0]} {source.namespace}/{source.name}"
        reason = resolve(template.sets, topologies or TopologyBook(), group=group)
        if isinstance(reason, TopologyConstraintInvalid) and names:
            judgement.denials.append(str(reason))
        elif isinstance(reason, TopologyConstraintInvalid) or (
            topologies is not None and isinstance(reason, msgspec.Struct)
        ):
            judgement.warnings.append(f"{reason}; its pods do not start until that is mended")
    return judgement


def _scheduler_names(value: Any) -> Iterator[str]:
    """Yield the scheduler of each pod template, wherever it is in an object."""
    if isinstance(value, list):
        for item in value:
            yield from _scheduler_names(item)
    elif isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield str(value.get("schedulerName") or DEFAULT_SCHEDULER)
            return
        for item in value.values():
            yield from _scheduler_names(item)


def denials_and_warnings(judgement: Judgement, before: Judgement) -> tuple[str, list[str]]:
    """Return why a change is refused, and its warnings: what was wrong before stands in no change's way."""
    denials = [text for text in judgement.denials if text not in before.denials]
    warnings = [text for text in judgement.denials if text in before.denials]
    return "; ".join(denials), [*warnings, *judgement.warnings]


_API_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"
_POD = ("v1", "Pod")

#: Longest warning, and most of them; what is longer is cut by API servers, and where there are more, all are.
_LONGEST_WARNING, _MOST_WARNINGS = 256, 10

_FORBIDDEN = 403


class ObjectKind(Wire):
    """The kind of the object."""

    group: str = ""
    version: str = ""
    kind: str = ""

    @property
    def api_version(self) -> str:
        """As objects name it."""
        return f"{self.group}/{self.version}" if self.group else self.version


class AdmissionRequest(Wire):
    """The object to judge; `object` is absent for deletions, `old_object` for creations."""

    uid: str
    kind: ObjectKind
    operation: str = ""
    namespace: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw()
    old_object: msgspec.Raw = msgspec.Raw()


class _Review(Wire):
    request: AdmissionRequest
    api_version: str = ""
    kind: str = ""


_decoder = msgspec.json.Decoder(_Review)


def read_review(body: bytes) -> AdmissionRequest:
    """Read an API server's question. Raises InvalidObject: it is none."""
    try:
        review = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidObject(_KIND, "body", body[:80], str(error)) from error
    if (review.api_version, review.kind) != (_API_VERSION, _KIND):
        raise InvalidObject(
            _KIND, "apiVersion", f"{review.api_version} {review.kind}", f"is not {_API_VERSION} {_KIND}"
        )
    return review.request


def answer_review(
    uid: str, denial: str, warnings: Sequence[str] = (), *, patch: Sequence[Document] = ()
) -> dict[str, Any]:
    """Return the answer to a question.

    Args:
        denial: why the object is refused; empty if it is not.
        warnings: what its author should know.
        patch: the object's changes, as a JSON Patch.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": not denial}
    if denial:
        response["status"] = {"code": _FORBIDDEN, "reason": "Forbidden", "message": denial}
    if warnings:
        response["warnings"] = [_cut(text) for text in warnings[:_MOST_WARNINGS]]
    if patch:
        response |= {"patchType": "JSONPatch", "patch": b64encode(msgspec.json.encode(patch)).decode()}
    return {"apiVersion": _API_VERSION, "kind": _KIND, "response": response}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_WARNING else f"{text[: _LONGEST_WARNING - 1]}…"


_REVIEWS = Counter("kai_webhook_reviews", "Objects judged: allowed, warned, denied, completed", ["kind", "result"])

#: What API servers send most: an object of 1.5 MiB, the largest that etcd takes, as it was and as it is to be.
MOST_BYTES = 4 << 20


def make_app(
    topologies: Callable[[], TopologyBook | None], health: Health, *, scheduler_name: str, gpu_sharing: bool = False
) -> Asgi:
    """Make the application that judges objects.

    Args:
        topologies: returns those that there are; None where that is not known.
        scheduler_name: of the pods that are ours.
        gpu_sharing: pods with a share of a GPU are completed.
    """
    app = FastAPI(title="kai-webhook", docs_url=None, redoc_url=None)
    add_error_handlers(app)

    def look(request: AdmissionRequest, body: msgspec.Raw) -> Judgement:
        if not bytes(body) or bytes(body) == b"null":
            return Judgement()
        kind = request.kind
        return judge(kind.api_version, kind.kind, bytes(body), topologies=topologies(), scheduler_name=scheduler_name)

    @app.post("/validate")
    async def validate(http: Request) -> Response:
        request = await _reviewed(http)
        denial, warnings = "", list[str]()
        if request.operation in ("CREATE", "UPDATE") and not request.sub_resource and not _is_leaving(request.object):
            before = look(request, request.old_object) if request.operation == "UPDATE" else Judgement()
            denial, warnings = denials_and_warnings(look(request, request.object), before)
        result = "denied" if denial else "warned" if warnings else "allowed"
        _REVIEWS.labels(request.kind.kind, result).inc()
        return _json(answer_review(request.uid, denial, warnings))

    @app.post("/mutate")
    async def mutate(http: Request) -> Response:
        request = await _reviewed(http)
        denial, patch = "", list[Document]()
        if gpu_sharing and request.operation == "CREATE" and (request.kind.api_version, request.kind.kind) == _POD:
            try:
                patch = admitted(
                    bytes(request.object),
                    namespace=request.namespace,
                    request_uid=request.uid,
                    scheduler_name=scheduler_name,
                )
            except InvalidObject as error:
                denial = str(error)
        result = "denied" if denial else "completed" if patch else "allowed"
        _REVIEWS.labels(request.kind.kind, result).inc()
        return _json(answer_review(request.uid, denial, patch=patch))

    return with_health(health, app=app)


async def _reviewed(http: Request) -> AdmissionRequest:
    try:
        return read_review(await http.body())
    except InvalidObject as error:
        raise HTTPException(400, str(error)) from error


class _Leaving(msgspec.Struct):
    """As much of an object as tells whether it is being deleted."""

    metadata: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


def _is_leaving(body: msgspec.Raw) -> bool:
    """Tell whether an object is being deleted: nothing is to stand in the way of its last finalizer."""
    try:
        return "deletionTimestamp" in msgspec.json.decode(bytes(body) or b"{}", type=_Leaving).metadata
    except msgspec.DecodeError:
        return False


def _json(answer: Any) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
