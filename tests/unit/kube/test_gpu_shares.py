"""Objects by which a share of a GPU is carried out, under KAI's names."""

import copy
from typing import Any

import jsonpatch
import msgspec
import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.gpu_shares import (
    ReservationSettings,
    config_map_prefix,
    config_maps,
    group_labels_patch,
    is_ours,
    portion,
    reservation_pod,
    sharing_patch,
)
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS
from kaicore.rules.engine.placement.gpu_supply import planned_pod
from kaicore.rules.engine.placement.pod_class import class_identity
from kaicore.rules.events.payloads import GpuOpened
from kaicore.rules.model.gpu_share import GpuPart
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount

Json = dict[str, Any]
NAMED = ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")


def pod(name: str = "a", *, container: str = "", **metadata: Any) -> Json:
    annotations = {"gpu-fraction": "0.5"} | ({"gpu-fraction-container-name": container} if container else {})
    return {
        "metadata": {"name": name, "namespace": "default", "uid": "u", "annotations": annotations, **metadata},
        "spec": {
            "initContainers": [{"name": "prepare"}],
            "containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}, {"name": "side"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


def admitted(given: Json) -> Json:
    return jsonpatch.JsonPatch(sharing_patch(given, "1234567")).apply(given)  # type: ignore[no-any-return]


def test_pod_with_a_share_gets_annotation_environment_and_volume_and_keeps_its_own() -> None:
    made = admitted(pod())
    assert made["metadata"]["annotations"]["runai/shared-gpu-configmap"] == "a-1234567-shared-gpu"
    keys, environment = "a-1234567-shared-gpu-0", "a-1234567-shared-gpu-0-evar"
    main, side = made["spec"]["containers"]
    assert main["env"] == [
        {"name": "A", "value": "1"},
        *({"name": one, "valueFrom": {"configMapKeyRef": {"name": keys, "key": one}}} for one in NAMED),
    ]
    assert main["envFrom"] == [{"configMapRef": {"name": environment, "optional": False}}]
    assert made["spec"]["volumes"] == [
        {"name": "data", "emptyDir": {}},
        {"name": f"{keys}-vol", "configMap": {"name": keys}},
    ]
    assert side == {"name": "side"}


@pytest.mark.parametrize(("container", "suffix"), [("", "0"), ("side", "1"), ("prepare", "i0")])
def test_container_that_the_annotation_names_gets_the_share(container: str, suffix: str) -> None:
    made = admitted(pod(container=container))
    every = {one["name"]: one for one in (*made["spec"]["initContainers"], *made["spec"]["containers"])}
    assert [name for name, one in every.items() if "envFrom" in one] == [container or "main"]
    assert [one["metadata"]["name"] for one in config_maps(made, devices=["0"], milli=500)] == [
        f"a-1234567-shared-gpu-{suffix}",
        f"a-1234567-shared-gpu-{suffix}-evar",
    ]


def test_pod_that_was_admitted_stays_as_it_is() -> None:
    assert sharing_patch(admitted(pod()), "another") == []


def test_container_that_the_pod_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidObject, match=r"gpu-fraction-container-name\]: is no container of the pod: 'other'"):
        sharing_patch(pod(container="other"), "1234567")


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "x" * 80},
        {"name": "a.b"},
        {"name": "", "generateName": "job-"},
        {"ownerReferences": [{"name": "y" * 100}]},
        {"name": ""},
    ],
)
def test_names_are_such_that_a_volume_may_have(metadata: Json) -> None:
    given = pod()
    given["metadata"] |= metadata
    prefix = config_map_prefix(given, "1234567")
    assert prefix.endswith("-1234567-shared-gpu")
    assert prefix[0].isalnum()
    assert "." not in prefix
    assert len(f"{prefix}-i99-vol") <= 63


def test_config_maps_name_gpus_and_part_where_the_container_looks() -> None:
    keys, environment = config_maps(admitted(pod()), devices=["GPU-1", "GPU-2"], milli=500)
    assert keys["data"] == dict(zip(NAMED, ("GPU-1,GPU-2", "0.50", "0.50"), strict=True))
    assert environment["data"] == {}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u"}
    assert all(one["metadata"]["ownerReferences"] == [owner] for one in (keys, environment))


def test_container_that_has_its_gpus_from_no_key_gets_them_by_its_source_of_environment() -> None:
    made = admitted(pod())
    made["spec"]["containers"][0]["env"] = []
    keys, environment = config_maps(made, devices=["0"], milli=500, cdi=True)
    assert (keys["data"].get("NVIDIA_VISIBLE_DEVICES"), environment["data"]) == (
        None,
        {"NVIDIA_VISIBLE_DEVICES": "k8s.device-plugin.nvidia.com/gpu=0"},
    )


def test_pod_that_the_webhook_did_not_see_is_told_so() -> None:
    with pytest.raises(InvalidObject, match="kai-webhook did not see the pod"):
        list(config_maps(pod(), devices=["0"], milli=500))


@pytest.mark.parametrize(("milli", "text"), [(500, "0.50"), (333, "0.333"), (5, "0.005"), (20, "0.02")])
def test_portion_has_two_decimals_or_three(milli: int, text: str) -> None:
    assert portion(milli) == text


def test_labels_name_the_groups_of_the_last_placement_alone() -> None:
    one, two = GpuPart("g1", 500), GpuPart("g2", 500)
    assert group_labels_patch({"app": "x"}, (one,)) == {"runai-gpu-group": "g1"}
    assert group_labels_patch({"runai-gpu-group": "old"}, (one, two)) == {
        "runai-gpu-group": None,
        "runai-gpu-group/g1": "g1",
        "runai-gpu-group/g2": "g2",
    }


def test_reservation_pod_asks_for_one_gpu_of_its_node() -> None:
    zones = (ZoneAmount(zone="node-1", amount={"nvidia.com/gpu": 1000}),)
    predicted = Placement(Provenance.PREDICTED, (ContainerPlacement("resource-reservation", ("node-1",), zones),))
    names = ("kai-resource-reservation", "gpu-reservation-n1-g1")
    opened = GpuOpened("n1", "g1", *names, "default/1", placement=predicted)
    made = reservation_pod(ReservationSettings("image", runtime_class="nvidia"), opened)
    spec, metadata = made["spec"], made["metadata"]
    assert (spec["nodeName"], spec["runtimeClassName"]) == ("n1", "nvidia")
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert (metadata["namespace"], metadata["name"]) == names
    assert "node-1" in metadata["annotations"]["kai.scheduler/numa-placement-predicted"]
    assert is_ours(metadata["labels"])
    of_kai = copy.deepcopy(metadata["labels"])
    del of_kai["app.kubernetes.io/managed-by"]
    assert not is_ours(of_kai)


def test_planned_reservation_pod_is_of_the_class_of_the_one_that_the_binder_makes() -> None:
    opened = GpuOpened("n1", "g1", "kai-resource-reservation", "gpu-reservation-n1-g1", "default/1")
    made = reservation_pod(ReservationSettings("image"), opened)
    observed = normalize_pod(PODS.decode(msgspec.json.encode(made)))
    planned = planned_pod("kai-resource-reservation", "gpu-reservation-n1-g1", "g1")
    assert class_identity(observed) == class_identity(planned)
