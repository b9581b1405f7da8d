"""The question of an API server, and the answer (Kubernetes 1.36, `admission.k8s.io/v1`)."""

from collections.abc import Sequence
from typing import Any

import msgspec
from kaicore.errors import InvalidObject
from kaicore.kube.wire import Wire

_API_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"

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
    """What is to be judged; `object` is absent for deletions, `old_object` for creations."""

    uid: str
    kind: ObjectKind
    operation: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw()
    old_object: msgspec.Raw = msgspec.Raw()


class _Review(Wire):
    request: AdmissionRequest
    api_version: str = ""
    kind: str = ""


_decoder = msgspec.json.Decoder(_Review)


def read_review(body: bytes) -> AdmissionRequest:
    """Read an API server's question.

    Raises:
        InvalidObject: it is none.
    """
    try:
        review = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidObject(_KIND, "body", body[:80], str(error)) from error
    if (review.api_version, review.kind) != (_API_VERSION, _KIND):
        raise InvalidObject(
            _KIND, "apiVersion", f"{review.api_version} {review.kind}", f"is not {_API_VERSION} {_KIND}"
        )
    return review.request


def answer_review(uid: str, denial: str, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the answer to a question.

    Args:
        uid: of the question.
        denial: why the object is refused; empty if it is not.
        warnings: what its author should know.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": not denial}
    if denial:
        response["status"] = {"code": _FORBIDDEN, "reason": "Forbidden", "message": denial}
    if warnings:
        response["warnings"] = [_cut(text) for text in warnings[:_MOST_WARNINGS]]
    return {"apiVersion": _API_VERSION, "kind": _KIND, "response": response}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_WARNING else f"{text[: _LONGEST_WARNING - 1]}…"
