"""ProvisioningRequests from manifests: how they fare, and what of a malformed one is left out."""

import json
from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.api.reflector_core import ObjectGone, ObjectKey, ObjectSeen
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.table import PROVISIONING_REQUEST, subject_of_fact
from kaicore.kube.normalize.queue import MOST_MESSAGE
from kaicore.rules.objects.provisioning import ProvisioningCondition, ProvisioningRequest

from tests.given.work.losses import refuse


def decoded(status: Any = None, *, version: str = "v1", **spec: Any) -> Any:
    metadata = {"name": "r", "namespace": "ml", "uid": "u", "resourceVersion": "7"}
    document = {"metadata": metadata, "spec": {"provisioningClassName": "c", **spec}, "status": status or {}}
    return PROVISIONING_REQUEST.resource.at(version).decode(json.dumps(document).encode())


def read(status: Any = None, lost: Any = refuse, *, version: str = "v1") -> ProvisioningRequest:
    found = PROVISIONING_REQUEST.normalize(decoded(status, version=version), lost)
    assert isinstance(found, ProvisioningRequest)
    return found


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_conditions_are_read_in_both_versions(version: str) -> None:
    status = {
        "conditions": [
            {"type": "Provisioned", "status": "False", "reason": "CapacityIsNotFound", "message": "not yet"},
            {"type": "Accepted", "status": "True", "reason": "Accepted"},
        ]
    }
    assert read(status, version=version) == ProvisioningRequest(
        "u",
        "ml",
        "r",
        "7",
        "c",
        (
            ProvisioningCondition("Accepted", True, "Accepted"),
            ProvisioningCondition("Provisioned", False, "CapacityIsNotFound", "not yet"),
        ),
    )


def test_an_end_counts_for_more_than_that_it_was_provisioned() -> None:
    ends = [{"type": name, "status": "True"} for name in ("BookingExpired", "CapacityRevoked", "Provisioned")]
    end = read({"conditions": ends}).end
    assert end is not None
    assert end.type == "CapacityRevoked"
    assert read({"conditions": [{"type": "Failed", "status": "False"}]}).end is None


def test_conditions_that_make_no_sense_are_left_out_and_said() -> None:
    said: list[str] = []
    status = {
        "conditions": [
            {"status": "True"},
            {"type": "Accepted", "status": "true"},
            {"type": "Failed", "status": "True", "message": "m" * 5000},
            {"type": "Failed", "status": "False"},
        ]
    }
    (condition,) = read(status, lambda error: said.append(str(error))).conditions
    assert (condition.met, len(condition.message)) == (True, MOST_MESSAGE)
    assert [one.partition(": ")[2].partition(":")[0] for one in said] == [
        "status.conditions[0].type",
        "status.conditions[1].status",
        "status.conditions[3].type",
    ]


@pytest.mark.parametrize("status", [{"conditions": {}}, {"conditions": [{"type": 3}]}, []])
def test_a_status_of_another_shape_is_refused_with_its_field(status: Any) -> None:
    with pytest.raises(InvalidObject, match="ProvisioningRequest ml/r"):
        read(status or [1])


def test_facts_tell_of_a_request_once_and_of_its_end() -> None:
    facts = Facts("c")
    unit = facts.translate(PROVISIONING_REQUEST, ObjectSeen(decoded()), now=1)
    assert unit is not None
    (event,) = unit.events
    assert event.stream == "provisioning/ml/r"
    found = subject_of_fact(event.payload)
    assert found is not None
    assert found[:2] == ("ProvisioningRequest.autoscaling.x-k8s.io", ObjectKey("ml", "r"))
    assert facts.translate(PROVISIONING_REQUEST, ObjectSeen(decoded()), now=1) is None
    gone = facts.translate(PROVISIONING_REQUEST, ObjectGone(ObjectKey("ml", "r"), "u", "8"), now=2)
    assert gone is not None
    assert type(gone.events[0].payload).__name__ == "ProvisioningRequestDeleted"
