"""Admission of pods that ask for a share of a GPU: refused where they contradict themselves, completed where not.

Virtual GPUs of other projects become a share in KAI-Scheduler's words first.
As KAI-Scheduler's admission does it (`pkg/admission/webhook/v1alpha2/gpusharing`), so that the programs of its devices'
side find what they expect.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from kaicore.errors import InvalidObject
from kaicore.kube.gpu_shares import Document, sharing_patch
from kaicore.kube.normalize.gpu_share import gpu_share
from kaicore.kube.normalize.share_dialects import translated
from kaicore.kube.wire.objects import PodSpec
from kaicore.rules.objects.wire import Wire

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


_decoder = msgspec.json.Decoder(_NewPod)


def admitted(body: bytes, *, namespace: str, request_uid: str, scheduler_name: str) -> list[Document]:
    """Return what is added to a new pod, as a JSON Patch; nothing to one without a share, or of another scheduler.

    Args:
        body: the pod as JSON.
        namespace: where it is to be.
        request_uid: of the API server's question; it tells the pod from others.
        scheduler_name: of the pods that are ours.

    Raises:
        InvalidObject: it asks for what no GPU can give, naming object, field and value.
    """
    try:
        pod = _decoder.decode(body)
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
    for field in ("containers", "initContainers"):
        for number, container in enumerate(after["spec"].get(field) or ()):
            if container != before["spec"][field][number]:
                yield {"op": "replace", "path": f"/spec/{field}/{number}", "value": container}
    if annotations := after["metadata"]["annotations"]:
        yield {"op": "add", "path": "/metadata/annotations", "value": annotations}
