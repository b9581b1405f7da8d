"""The journal: what is read back after any end, clean or not."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kai_fleet.node import checkpoint
from kai_fleet.node.agent import Agent
from kai_fleet.node.checkpoint import Journal, restore
from kai_fleet.profiles.nodes import expand
from kai_fleet.profiles.profile import parse_profile
from kaicore.errors import ConfigurationError
from kaicore.runtime.service import configure_logging

from tests.tools.fleet.objects import pod_object, small_fleet

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


def test_a_line_that_was_cut_off_is_ignored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal_of(tmp_path, "a")
    file = tmp_path / "kubelets.jsonl"
    file.write_bytes(file.read_bytes() + b'{"node":"node-0","put":{"uid')
    assert list(again(tmp_path).kubelet.pods) == ["uid-a"]
    assert "torn" not in "".join(capfd.readouterr())


def test_torn_lines_are_left_out_with_a_warning_and_are_gone_after_that(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal_of(tmp_path, "a", "b", "c")
    file = tmp_path / "kubelets.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    # The disk was full in the middle of a line, and the next one came right behind it.
    torn = [b"garbage\n", *(line[:50] + lines[0] if b'"uid-b"' in line else line for line in lines), b"\xff\x00\n"]
    file.write_bytes(b"".join(torn))
    configure_logging("fleet")
    assert list(again(tmp_path).kubelet.pods) == ["uid-a", "uid-c"]
    output = "".join(capfd.readouterr())
    assert "torn lines of the checkpoint are left out" in output
    assert "kubelets.jsonl" in output
    assert "line 1: " in output
    assert list(again(tmp_path).kubelet.pods) == ["uid-a", "uid-c"]
    assert "torn" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("wrong", [b'"stage":"dancing"', b'"cpus":"7-x"'])
def test_a_pod_whose_checkpoint_makes_no_sense_is_left_out_alone(tmp_path: Path, wrong: bytes) -> None:
    journal_of(tmp_path, "a", "b")
    file = tmp_path / "kubelets.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    key = wrong.partition(b":")[0]
    edited = [re.sub(key + rb':"[^"]*"', wrong, line) if b'"uid-a"' in line else line for line in lines]
    file.write_bytes(b"".join(edited))
    survivor = again(tmp_path)
    assert list(survivor.kubelet.pods) == ["uid-b"]
    assert set(survivor.kubelet.managers.cpus.assigned) == {"uid-b"}


def test_a_directory_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"checkpoints: .*file"):
        Journal(tmp_path / "file")
    (tmp_path / "kubelets.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match=r"checkpoints: .*kubelets.jsonl"):
        Journal(tmp_path)


def test_a_journal_that_could_not_be_written_is_whole_again_when_it_can(tmp_path: Path) -> None:
    agent = Agent(small_fleet()[0])
    journal = started(tmp_path, agent)
    agent.pod_seen(pod_object("a"), NOW)
    noted(journal, agent)
    with files_of_at_most((tmp_path / "kubelets.jsonl").stat().st_size + 10):
        agent.pod_seen(pod_object("b"), NOW)
        noted(journal, agent)
        assert journal.problem.endswith("kubelets.jsonl: File too large")
        agent.pod_seen(pod_object("c"), NOW)
        noted(journal, agent)
        journal.start([agent])
        assert journal.problem, "there is still no room"
    journal.start([agent])
    assert not journal.problem
    journal.close()
    assert list(again(tmp_path).kubelet.pods) == ["uid-a", "uid-b", "uid-c"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes; a write to one that would fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def journal_of(directory: Path, *names: str) -> None:
    agent = Agent(small_fleet()[0])
    journal = started(directory, agent)
    for name in names:
        agent.pod_seen(pod_object(name), NOW)
        noted(journal, agent)
    journal.close()


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
