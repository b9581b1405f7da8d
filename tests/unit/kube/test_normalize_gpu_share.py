"""KAI's annotations for shares of a GPU: what they say, and what KAI's admission refuses."""

from typing import Any

import pytest
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS
from kaicore.rules.model.gpu_share import GpuShare, gpu_memory, reservation_name
from kaicore.rules.model.pod import Pod

from tests.given.cluster import wire


def normalized(annotations: dict[str, str], **spec: Any) -> Pod:
    return normalize_pod(PODS.decode(wire.encode(wire.pod(annotations=annotations, **spec))))


@pytest.mark.parametrize(
    ("annotations", "share"),
    [
        ({"gpu-fraction": "0.5"}, GpuShare(milli=500)),
        ({"gpu-fraction": "5e-1"}, GpuShare(milli=500)),
        # Cut: three of these are on one GPU. And never nothing.
        ({"gpu-fraction": "0.3333"}, GpuShare(milli=333)),
        ({"gpu-fraction": "0.0001"}, GpuShare(milli=1)),
        ({"gpu-memory": "2000"}, GpuShare(mib=2000)),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}, GpuShare(mib=2000, devices=2)),
        ({"gpu-memory": "2000", "kai.scheduler/gpu-fraction-at-least": "0.5"}, GpuShare(milli=500, mib=2000)),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "main"}, GpuShare(milli=500, container="main")),
    ],
)
def test_share_of_a_gpu_is_read_as_thousandths_or_mib(annotations: dict[str, str], share: GpuShare) -> None:
    pod = normalized(annotations)
    assert (pod.gpu_share, pod.malformed, pod.unsupported) == (share, "", ())


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        *(({"gpu-fraction": text}, "gpu-fraction") for text in ("0", "1", "1.5", "-0.5", "nan", "half", "", "9" * 99)),
        *(({"gpu-memory": text}, "gpu-memory") for text in ("0", "-1", "1.5", "2Gi", "", str(2**60))),
        ({"gpu-fraction": "0.5", "gpu-memory": "2000"}, "gpu-memory"),
        ({"gpu-fraction-num-devices": "2"}, "gpu-fraction-num-devices"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}, "gpu-fraction-num-devices"),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "other"}, "gpu-fraction-container-name"),
    ],
)
def test_share_that_kai_refuses_makes_the_pod_malformed_by_annotation_and_value(
    annotations: dict[str, str], name: str
) -> None:
    pod = normalized(annotations)
    assert pod.gpu_share is None
    assert pod.malformed.startswith(f"metadata.annotations[{name}]: ")
    assert pod.malformed.endswith(repr(annotations[name][:40]))


def test_share_beside_whole_gpus_makes_the_pod_malformed() -> None:
    pod = normalized(
        {"gpu-fraction": "0.5"}, containers=[{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    )
    assert pod.malformed == ("spec.containers[0].resources: stands beside a share of a GPU: 'nvidia.com/gpu: 1'")


@pytest.mark.parametrize(
    ("label", "mib"),
    [("40960", 40900), (str(40960 * 2**20), 40900), ("81559", 81500), ("many", 0), ("", 0), ("-5", 0)],
)
def test_memory_of_a_gpu_is_cut_to_hundreds_of_mib(label: str, mib: int) -> None:
    assert gpu_memory({"nvidia.com/gpu.memory": label}) == mib
    assert GpuShare(mib=mib // 4 + 1).part_of(mib) == (251 if mib else 1001)


def test_name_of_a_reservation_pod_fits_whatever_the_node_is_called() -> None:
    assert reservation_name("n1", "0123456789") == "gpu-reservation-n1-01234567"
    assert len(reservation_name("n" * 253, "0123456789")) == 253


def test_mig_devices_are_ordinary_resources() -> None:
    pod = normalized({}, containers=[{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}])
    assert (pod.unsupported, pod.containers[0].requests) == ((), {"nvidia.com/mig-1g.5gb": 1})


def test_mig_devices_by_annotation_wait_with_what_to_do() -> None:
    name = "nvidia.com/mig-1g.5gb"
    reason = f"MIG devices by annotation ({name}): no kubelet gives them; use a container's limit of that name"
    assert normalized({name: "1"}).unsupported == (reason,)
    assert normalized({name: "half"}).unsupported == (), "as KAI, which counts none"
