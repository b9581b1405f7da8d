"""The same pod asking for less of one resource."""

from kaicore.rules.engine.explain.remedies import Sizes, with_at_most
from kaicore.rules.model.pod import ContainerKind, Pod

from tests.given.cluster.factory import GI, GPU, container, pod


def test_sizes_are_amounts_that_people_write() -> None:
    assert list(Sizes.of("cpu", below=3000)) == [*range(100, 1000, 100), 1000, 2000]
    assert list(Sizes.of("cpu", below=300)) == [100, 200]
    assert list(Sizes.of("memory", below=3 * GI))[-3:] == [1023 * 2**20, GI, 2 * GI]
    assert list(Sizes.of("hugepages-1Gi", below=3 * GI)) == [GI, 2 * GI]
    assert next(iter(Sizes.of("hugepages-2Mi", below=3 * GI))) == 2**21
    assert list(Sizes.of(GPU, below=3)) == [1, 2]
    assert len(Sizes.of(GPU, below=1)) == 0


def test_pod_with_at_most_an_amount_has_each_container_lowered_or_is_none() -> None:
    init = container("init", ContainerKind.INIT, cpu=10)
    main = container("main", cpu=8)

    def cpus(one: Pod | None) -> list[int]:
        return [] if one is None else [item.requests["cpu"] for item in one.containers]

    assert cpus(with_at_most(pod("p", init, main), "cpu", 9000)) == [9000, 8000]
    assert cpus(with_at_most(pod("p", init, main), "cpu", 6000)) == [6000, 6000]
    assert cpus(with_at_most(pod("p", main, container("side", cpu=4)), "cpu", 9000)) == [5000, 4000]
    assert with_at_most(pod("p", main, container("side", cpu=4)), "cpu", 4000) is None, "one would be left with nothing"
    assert with_at_most(pod("p", main, pod_resources={"cpu": 12_000}), "cpu", 4000) is None, "less than its containers"
    lower = with_at_most(pod("p", main, pod_resources={"cpu": 12_000}, overhead={"cpu": 500}), "cpu", 9500)
    assert lower is not None
    assert lower.pod_resources == {"cpu": 9000}
    assert lower.containers == (main,)
