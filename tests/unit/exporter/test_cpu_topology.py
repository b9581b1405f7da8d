"""sysfs as Linux writes it, and as it should not be."""

from pathlib import Path

import pytest
from kai_exporter.checkpoints import parse_cpulist, read_cpu_topology
from kaicore.errors import InvalidObject

from tests.given.cluster.podresources import write_sysfs


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8-11", [0, 1, 2, 3, 8, 9, 10, 11]),
        ("5\n", [5]),
        ("", []),
        ("\n", []),
        ("0,2,4-4", [0, 2, 4]),
    ],
)
def test_cpulist(text: str, ids: list[int]) -> None:
    assert parse_cpulist(text, subject="Node n1", field="cpulist") == ids


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "1-", "0-99999999", "1;2", "١"])  # noqa: RUF001
def test_garbage_is_named(text: str) -> None:
    with pytest.raises(InvalidObject, match="Node n1: cpulist: not a list of CPUs"):
        parse_cpulist(text, subject="Node n1", field="cpulist")


def test_each_cpu_is_on_its_numa_node(tmp_path: Path) -> None:
    write_sysfs(tmp_path, {0: "0-1,4-5", 1: "2-3", 2: "", 10: "6"})
    (tmp_path / "devices/system/node/possible").write_text("0-10\n")
    (tmp_path / "devices/system/node/power").mkdir()
    expected = {0: 0, 1: 0, 4: 0, 5: 0, 2: 1, 3: 1, 6: 10}
    assert read_cpu_topology(tmp_path, subject="Node n1") == expected


def test_a_cpu_on_two_numa_nodes_is_refused(tmp_path: Path) -> None:
    write_sysfs(tmp_path, {0: "0-3", 1: "3-4"})
    with pytest.raises(InvalidObject, match=r"node1/cpulist: this CPU is on NUMA node 0 too: 3"):
        read_cpu_topology(tmp_path, subject="Node n1")


def test_a_missing_sysfs_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidObject, match=r"Node n1: sysfs: cannot be read .*: '.*/devices/system/node'"):
        read_cpu_topology(tmp_path, subject="Node n1")


def test_a_sysfs_without_numa_nodes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "devices/system/node").mkdir(parents=True)
    with pytest.raises(InvalidObject, match="lists no CPU of any NUMA node"):
        read_cpu_topology(tmp_path, subject="Node n1")
