"""The journal: what is read back after any end, clean or not."""

from pathlib import Path

import pytest
from kai_simulator.fleet import checkpoint
from kai_simulator.fleet.agent import Agent
from kai_simulator.fleet.checkpoint import Journal, restore
from kai_simulator.fleet.nodes import expand
from kai_simulator.fleet.profile import parse_profile
from kaicore.errors import ConfigurationError

from tests.simulator.fleet.objects import pod_object, small_fleet

NOW = 1_800_000_000.0


def started(directory: Path, *agents: Agent) -> Journal:
    journal = Journal(directory)
    for agent in agents:
        restore(agent, journal.state_of(agent.spec.name))
    journal.start(agents)
    return journal


def noted(journal: Journal, agent: Agent) -> None:
    journal.note(agent)
    journal.flush()


def again(directory: Path) -> Agent:
    agent = Agent(small_fleet()[0])
    started(directory, agent).close()
    return agent


def test_every_line_counts_whatever_happens_after_it(tmp_path: Path) -> None:
    agent = Agent(small_fleet()[0])
    journal = started(tmp_path, agent)
    for name in ("a", "b", "c"):
        agent.pod_seen(pod_object(name), NOW)
        noted(journal, agent)
    agent.pod_gone("uid-b")
    noted(journal, agent)
    # Nothing is closed: the process is gone.
    survivor = again(tmp_path)
    assert list(survivor.kubelet.pods) == ["uid-a", "uid-c"]
    assert survivor.kubelet.managers.cpus.assigned == agent.kubelet.managers.cpus.assigned
    assert survivor.kubelet.managers.memory.zones == agent.kubelet.managers.memory.zones
    journal.close()


def test_a_line_that_was_cut_off_is_ignored_and_any_other_is_an_error(tmp_path: Path) -> None:
    agent = Agent(small_fleet()[0])
    journal = started(tmp_path, agent)
    agent.pod_seen(pod_object("a"), NOW)
    noted(journal, agent)
    journal.close()
    file = tmp_path / "kubelets.jsonl"
    file.write_bytes(file.read_bytes() + b'{"node":"node-0","put":{"uid')
    assert list(again(tmp_path).kubelet.pods) == ["uid-a"]
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"garbage\n" + b"".join(lines))
    with pytest.raises(ConfigurationError, match=r"kubelets\.jsonl: line 1: not a checkpoint"):
        Journal(tmp_path)


def test_an_unhealthy_device_stays_so(tmp_path: Path) -> None:
    agent = Agent(small_fleet()[0])
    journal = started(tmp_path, agent)
    agent.kubelet.set_device_health("nvidia.com/gpu", "gpu-03", healthy=False)
    journal.note_unhealthy(agent)
    journal.flush()
    journal.close()
    assert again(tmp_path).kubelet.allocatable["nvidia.com/gpu"] == 7


def test_a_node_that_changed_its_machine_keeps_what_it_still_has(tmp_path: Path) -> None:
    agent = Agent(small_fleet()[0])
    journal = started(tmp_path, agent)
    agent.kubelet.set_device_health("nvidia.com/gpu", "gpu-03", healthy=False)
    journal.note_unhealthy(agent)
    agent.pod_seen(pod_object("a", amounts={"nvidia.com/gpu": "1"}), NOW)
    noted(journal, agent)
    journal.close()
    without_gpus = "groups: [{name: node, zones: 2, perZone: {cpus: 8, memory: 32Gi}}]"
    changed = Agent(expand(parse_profile(without_gpus, source="f"))[0])
    started(tmp_path, changed).close()
    assert list(changed.kubelet.pods) == ["uid-a"]
    assert not changed.kubelet.managers.devices.assigned


def test_the_file_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "COMPACT_BYTES", 20_000)
    agent = Agent(small_fleet()[0])
    journal = started(tmp_path, agent)
    for number in range(200):
        agent.pod_seen(pod_object(f"p{number}"), NOW)
        agent.pod_gone(f"uid-p{number}")
        noted(journal, agent)
        if journal.wants_compaction:
            journal.start([agent])
    journal.close()
    assert (tmp_path / "kubelets.jsonl").stat().st_size < 25_000
