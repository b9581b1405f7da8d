"""Virtual GPUs of other projects: what becomes of a new pod, and what is refused with what to do instead."""

from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.normalize.share_dialects import SHARE_DIALECTS, translated
from kaicore.kube.wire.resources import PODS
from kaicore.rules.model.gpu_share import GpuShare, gpus_text
from kaicore.rules.model.pod import Pod

from tests.given.cluster import wire

Json = dict[str, Any]
HAMI, VOLCANO, KOORDINATOR = "nvidia.com", "volcano.sh/vgpu-", "koordinator.sh"


def pod(limits: Json, *more: Json, annotations: Json | None = None, init: list[Json] | None = None) -> Json:
    containers = [
        {"name": f"c{number}", "resources": {"limits": one, "requests": {"cpu": "1", **one}}}
        for number, one in enumerate((limits, *more))
    ]
    return wire.pod(annotations=annotations or {}, containers=containers, initContainers=init or [])


def admitted(document: Json) -> Pod:
    return normalize_pod(PODS.decode(wire.encode(dict(translated(document)))))


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({f"{HAMI}/gpu": 1, f"{HAMI}/gpumem": 3000}, GpuShare(mib=3000)),
        # HAMi's admission asks for one GPU where the pod does not say how many.
        ({f"{HAMI}/gpumem": "3k"}, GpuShare(mib=3000)),
        ({f"{HAMI}/gpu": 2, f"{HAMI}/gpumem": 3000, f"{HAMI}/gpucores": 30}, GpuShare(300, 3000, 2)),
        ({f"{HAMI}/gpu": 1, f"{HAMI}/gpumem-percentage": 50}, GpuShare(500)),
        ({f"{HAMI}/gpumem-percentage": 20, f"{HAMI}/gpucores": 30}, GpuShare(300)),
        # MiB come before per cent.
        ({f"{HAMI}/gpumem-percentage": 20, f"{HAMI}/gpumem": 3000}, GpuShare(mib=3000)),
        ({f"{VOLCANO}number": 1, f"{VOLCANO}memory": 1024}, GpuShare(mib=1024)),
        ({f"{VOLCANO}number": 2, f"{VOLCANO}memory-percentage": 25, f"{VOLCANO}cores": 10}, GpuShare(250, devices=2)),
        ({f"{KOORDINATOR}/gpu": 50}, GpuShare(500)),
        ({f"{KOORDINATOR}/gpu-core": 50, f"{KOORDINATOR}/gpu-memory-ratio": 60}, GpuShare(600)),
        ({f"{KOORDINATOR}/gpu-memory": "8Gi"}, GpuShare(mib=8192)),
        ({f"{KOORDINATOR}/gpu-core": 50, f"{KOORDINATOR}/gpu-memory": "8Gi"}, GpuShare(500, 8192)),
        # Amounts are of all GPUs together.
        (
            {f"{KOORDINATOR}/gpu.shared": 2, f"{KOORDINATOR}/gpu-core": 60, f"{KOORDINATOR}/gpu-memory": "8Gi"},
            GpuShare(300, 4096, 2),
        ),
        ({f"{KOORDINATOR}/gpu.shared": 2, f"{KOORDINATOR}/gpu-memory-ratio": 100}, GpuShare(500, devices=2)),
    ],
)
def test_virtual_gpus_become_a_share_that_no_kubelet_is_asked_for(limits: Json, share: GpuShare) -> None:
    one = admitted(pod(limits))
    assert (one.gpu_share, one.unsupported, one.malformed) == (share, (), "")
    assert one.containers[0].requests == {"cpu": 1000}


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [
        ({f"{HAMI}/gpumem-percentage": 100, f"{HAMI}/gpu": 2}, 2),
        ({f"{HAMI}/gpucores": 30}, 1),
        ({f"{VOLCANO}number": 3}, 3),
        ({f"{VOLCANO}memory": 1024, f"{VOLCANO}cores": 100}, 1),
        ({f"{KOORDINATOR}/gpu": 200}, 2),
        ({f"{KOORDINATOR}/gpu-core": 400, f"{KOORDINATOR}/gpu-memory-ratio": 400}, 4),
    ],
)
def test_virtual_gpus_that_are_whole_become_whole_gpus(limits: Json, gpus: int) -> None:
    one = admitted(pod(limits))
    assert (one.gpu_share, one.unsupported) == (None, ())
    assert one.containers[0].requests == {"cpu": 1000, "nvidia.com/gpu": gpus}


def test_container_gets_what_hamis_library_limits_it_by_but_for_what_it_says_itself() -> None:
    document = pod({f"{HAMI}/gpumem": 3000, f"{HAMI}/gpucores": 30})
    document["spec"]["containers"][0]["env"] = [{"name": "CUDA_DEVICE_SM_LIMIT", "value": "10"}]
    assert translated(document)["spec"]["containers"][0]["env"] == [
        {"name": "CUDA_DEVICE_SM_LIMIT", "value": "10"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "3000m"},
    ]


def test_share_is_that_of_the_container_that_asks() -> None:
    asking = {"name": "warm-up", "resources": {"limits": {f"{HAMI}/gpumem": 3000}}}
    assert admitted(pod({}, {f"{HAMI}/gpumem": 3000})).gpu_share == GpuShare(mib=3000, container="c1")
    assert admitted(pod({}, init=[asking])).gpu_share == GpuShare(mib=3000, container="warm-up")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (pod({f"{HAMI}/gpu": 0, f"{HAMI}/gpumem": 3000}), r"resources\[nvidia.com/gpu\]: asks for no GPU"),
        (pod({f"{HAMI}/gpumem-percentage": 101}), r"gpumem-percentage\]: is more than 100"),
        (pod({f"{HAMI}/gpumem": "many"}), "not a Kubernetes quantity"),
        (pod({f"{VOLCANO}slots": 1}), r"vgpu-slots\]: is not carried out; leave it out"),
        (pod({f"{KOORDINATOR}/gpu-core": 50}), "stands without koordinator.sh/gpu-memory-ratio"),
        (pod({f"{KOORDINATOR}/gpu": 150}), r"koordinator.sh/gpu\]: is no equal part of each of 1 GPUs"),
        (pod({f"{HAMI}/gpumem": 1}, {f"{VOLCANO}memory": 1}), r"ask for virtual GPUs twice; .*\['c0', 'c1'\]"),
        (
            pod({f"{HAMI}/gpumem": 1}, annotations={"nvidia.com/use-gputype": "A100"}),
            r"use-gputype\]: is not carried out; choose nodes by their labels",
        ),
        (
            pod({f"{HAMI}/gpumem": 1}, annotations={"gpu-fraction": "0.5"}),
            r"gpu-fraction\]: stands beside virtual GPUs",
        ),
    ],
)
def test_virtual_gpus_that_cannot_be_carried_out_are_refused_by_field_with_what_to_do(
    document: Json, words: str
) -> None:
    with pytest.raises(InvalidObject, match=words):
        translated(document)


def test_pod_without_virtual_gpus_comes_back_itself() -> None:
    document = pod({f"{HAMI}/gpu": 1, f"{HAMI}/mig-1g.5gb": 1})
    assert translated(document) is document


@pytest.mark.parametrize("dialect", SHARE_DIALECTS, ids=lambda one: one.name)
def test_pod_that_no_webhook_saw_waits_with_what_to_do(dialect: Any) -> None:
    name = next(name for name in dialect.resources if dialect.owns(name))
    one = normalize_pod(PODS.decode(wire.encode(pod({name: "1"}))))
    assert one.unsupported == (
        f"virtual GPUs of {dialect.name} ({name}): kai-webhook makes them a share of new pods where sharing is "
        "enabled; else use the annotation gpu-fraction or gpu-memory",
    )


def test_memory_with_a_least_fraction_is_the_larger_one_on_each_gpu() -> None:
    share = GpuShare(300, 3000)
    assert [gpus_text(share.part_of(memory)) for memory in (80_000, 10_000, 4_000, 2_000, 0)] == [
        "0.3",
        "0.3",
        "0.75",
        "1.5",
        "1.001",
    ]
    assert str(share) == "3000 MiB of a GPU's memory (at least 0.3 of it)"
