"""Questions of API servers, and the answers."""

import json

import pytest
from kai_webhook.app import answer_review, read_review
from kaicore.errors import InvalidObject

REQUEST = {"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "object": {"a": 1}}


def review(**changed: object) -> bytes:
    document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": REQUEST}
    return json.dumps({**document, **changed}).encode()


def test_a_question_is_read_as_far_as_it_matters() -> None:
    request = read_review(review())
    assert (request.uid, request.kind.api_version, bytes(request.object)) == ("u", "v1", b'{"a": 1}')


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", review(request={}), review(request=None), review(apiVersion="admission.k8s.io/v1beta1")]
)
def test_what_is_no_question_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidObject, match="AdmissionReview"):
        read_review(body)


def test_an_answer_has_the_questions_uid_and_few_short_warnings() -> None:
    response = answer_review("u", "", ["x" * 300] * 20)["response"]
    assert (response["uid"], response["allowed"], len(response["warnings"])) == ("u", True, 10)
    assert {len(text) for text in response["warnings"]} == {256}


def test_a_denial_says_why() -> None:
    response = answer_review("u", "because", [])["response"]
    assert response == {
        "uid": "u",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "because"},
    }
