"""`kai report-bug`: a slice of a log that has no names any more replays like the original."""

import gzip
import re
from base64 import b64decode
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kaicore.analysis.replay.exports import Pseudonyms, export_redacted
from kaicore.analysis.replay.moments import Range
from kaicore.analysis.replay.replay import replay_log
from kaicore.analysis.replay.self_check import differing_parts
from kaicore.ledger.log.files.log import FileLog
from kaicore.ledger.log.snapshots import read_state, take_state
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.groups.dialects.table import expand
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.state.pods.pod_entry import Stage

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.logs.exported import write_file
from tests.given.processes.called_kai import Run, caller
from tests.given.processes.kai_commands import kai
from tests.given.recorded import read_log, recorded_logs
from tests.given.work.groups import Json, World, documents, read_pod, source_of
from tests.given.work.workloads import Workloads
from tests.measured.assistants import LOGS, log_file
from tests.unit.ask.test_replay import altered, elsewhere, history

NEWEST = recorded_logs()[-1].parent
#: Names of the recorded logs: of pods, Jobs, nodes, containers, the machine, and a label's value.
SOME = {"full-node", "gpu-nic-cpu-locality", "gpu-5", "train-2", "fetch", "NVIDIA-H100-80GB-HBM3", "was rejected"}

#: Work of each dialect, its pods in sets that rules name, or find by names that are made of others.
KINDS = {
    "RayJob": "apiVersion: ray.io/v1\nkind: RayJob\nspec: {rayClusterSpec: {headGroupSpec: {template: POD},"
    " workerGroupSpecs: [{groupName: cpus, replicas: 2, template: POD}]}, submitterPodTemplate: POD}",
    "LeaderWorkerSet": "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec: {replicas: 2,"
    " leaderWorkerTemplate: {size: 4, subGroupPolicy: {subGroupSize: 2}, workerTemplate: POD}}",
    "PyTorchJob": "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {pytorchReplicaSpecs:"
    " {Master: {template: POD}, Worker: {replicas: 2, template: POD}}}",
    "MPIJob": "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nspec: {mpiReplicaSpecs:"
    " {Launcher: {template: POD}, Worker: {replicas: 2, template: POD}}}",
    "JobSet": "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec: {replicatedJobs: [{name: a, template: {spec:"
    " {template: POD}}}, {name: w, replicas: 2, template: {spec: {parallelism: 2, completions: 2, template: POD}}}]}",
    "Volcano": "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {minAvailable: 4, tasks: [{name: w,"
    " replicas: 4, partitionPolicy: {totalPartitions: 2, partitionSize: 2, minPartitions: 2}, template: POD}]}",
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return caller(monkeypatch, capsys)


def names_of(name: str) -> set[str]:
    found = set[str]()
    for event in read_log(NEWEST / f"{name}.jsonl.xz"):
        match msgspec.json.decode(event.body):
            case {"pod": {"name": pod, "containers": containers, "owner": {"name": owner}}}:
                found |= {pod, owner, *(one.get("name", pod) for one in containers)}
            case {"node": {"name": node, "labels": labels}}:
                found |= {node, *(value for key, value in labels.items() if "kubernetes.io" not in key)}
            case {"source": {"name": source}}:
                found.add(source)
    return found


def text_of(path: Path) -> str:
    header, *lines = gzip.decompress(path.read_bytes()).splitlines()
    if lines[0].startswith(b'"'):
        lines[0] = b64decode(lines[0])
    return b"\n".join((header, *lines)).decode(errors="replace")


@pytest.mark.parametrize(("name", "part"), [*zip(LOGS, (["--to=400"], ["--from=480", "--to=760"]), strict=True)])
def test_recorded_log_without_its_names_replays_as_before(run: Run, tmp_path: Path, name: str, part: list[str]) -> None:
    made = tmp_path / "bug.log.gz"
    code, said = run("report-bug", str(made), *part, f"--file={log_file(tmp_path, name, NEWEST)}")
    assert (code, "otherwise" in said) == (0, False), said
    code, said = run("replay", f"--file={made}")
    assert code == 0, said
    assert "cluster redacted" in said
    assert " 0 differences\n" in said
    code, said = run("audit", "verify", f"--file={made}")
    assert code == 0, said
    names = names_of(name)
    assert len(names) > 100
    assert len(names & SOME) >= 4
    text = text_of(made)
    assert not (names | SOME) & set(re.findall(r"[\w.-]+", text))
    assert not [one for one in names | SOME if len(one) > 5 and one in text]


@pytest.mark.parametrize(
    ("type_", "change", "kind"),
    [
        ("PodPlaced", elsewhere, "PodPlaced: node"),
        ("CycleCompleted", lambda body: body.update(pending=[]), "CycleCompleted: why a class waits"),
        ("CycleCompleted", lambda body: body.update(placed=9), "CycleCompleted: placed"),
    ],
)
async def test_wrong_decision_is_the_same_difference_without_names(
    tmp_path: Path, type_: str, change: Callable[[dict[str, Any]], object], kind: str
) -> None:
    events = altered(history().events, type_, 5 if type_ == "PodPlaced" else 0, change)
    made, wanted = tmp_path / "bug.log.gz", Range(1, len(events))
    async with FileLog(write_file(tmp_path / "log.gz", events)) as log:
        before = await replay_log(log, "test")
        _, otherwise = await export_redacted(log, "test", made, wanted, key=b"secret")
    async with FileLog(made) as log:
        after = await replay_log(log, "redacted")
    assert (after.kinds, otherwise) == (before.kinds, 0)
    assert kind in before.kinds
    assert [(one.position, one.kind) for one in after.differences] == [
        (one.position, one.kind) for one in before.differences
    ]


def test_one_cycle_with_its_input_shows_its_difference(run: Run, tmp_path: Path) -> None:
    log = write_file(tmp_path / "log.gz", altered(history().events, "PodPlaced", 5, elsewhere))
    made = tmp_path / "bug.log.gz"
    code, said = run("report-bug", str(made), "--cycle=default/3", f"--file={log}")
    assert code == 0, said
    # On another machine: nothing but the file, and the command that was printed.
    (printed,) = re.findall(r"`(kai replay --file .*)`", said)
    there = kai(*printed.split()[1:], cwd=tmp_path, environment={"HOME": "/nowhere"})
    assert (there.returncode, "PodPlaced: node" in there.stdout) == (1, True), there


@pytest.mark.parametrize("kind", KINDS)
async def test_work_of_each_dialect_is_decided_alike_without_names(tmp_path: Path, kind: str) -> None:
    world = World("test", hashes=True).add_nodes(2, amounts(cpu=16, memory=64), amounts(cpu=16, memory=64))
    template = "{spec: {containers: [{name: main, resources: {requests: {cpu: 1, memory: 1Gi}}}]}}"
    (owner,) = documents(KINDS[kind].replace("POD", template).replace("\nspec", "\nmetadata: {name: train}\nspec"))
    others: list[Json] = []
    pods = [made.object for made in expand(owner, nodes_for=lambda _: [], between=others.append)]
    for one in (owner, *others):
        found = source_of(one)
        world.record(f"group/{found.key}", payloads.GroupSourceObserved(found))
    # One pod of a set comes later than the others: then it counts which set that is.
    for late in (pods[-1:], pods[:-1]):
        for one in late:
            world.add_pod(read_pod(one))
        world.cycle()
    assert all(entry.stage is Stage.PLACED for entry in world.state.pods.values())
    made = tmp_path / "bug.log.gz"
    async with FileLog(write_file(tmp_path / "log.gz", world.events)) as log:
        _, otherwise = await export_redacted(log, "test", made, Range(1, len(world.events)), key=b"secret")
    async with FileLog(made) as log:
        assert ((await replay_log(log, "redacted")).kinds, otherwise) == ({}, 0)


def test_difference_of_a_spoilt_memory_is_seen_without_names(run: Run, tmp_path: Path) -> None:
    made = Workloads("test", hashes=True).add_nodes(2, cpu=8, memory=32)
    made.add_pod(pod("train", cpu=2, memory=4))
    after, spoilt = made.state.position, read_state("test", take_state(made.state))
    spoilt.columns.set_node(None, spoilt.columns.row("n0"))
    proposal = decide(spoilt, EngineConfig(), shard="default", now=made.now, actor="scheduler")
    parts = differing_parts(take_state(spoilt).body, take_state(made.state).body)
    made.append(proposal.units)
    for check, differ in (("scheduler", parts), ("api-server", ("Node unheard-of",))):
        made.record(f"check/{check}", payloads.DifferenceFound(check, after, made.state.position, differ))
    code, said = run("report-bug", str(tmp_path / "b.gz"), f"--file={write_file(tmp_path / 'l.gz', made.events)}")
    assert code == 0, said
    code, said = run("replay", f"--file={tmp_path / 'b.gz'}")
    assert (code, "PodPlaced: node" in said) == (1, True), said
    differences = f"found a difference between {after} and"
    assert re.search(rf"the check of the scheduler {differences} \d+: {parts[0]}", said)
    assert f"the check of the api-server {differences}" in said
    assert not {"n0", "n1", "train", "unheard-of"} & set(re.findall(r"[\w.-]+", said))


def test_container_called_like_a_resource_or_a_field_leaves_quotas_and_names_in_labels_of_controllers_go(
    run: Run, tmp_path: Path
) -> None:
    made = Workloads("test", hashes=True).add_nodes(1, cpu=8, memory=32, gpu=2)
    made.record("queue/team", payloads.QueueObserved(queue("team", quota=1, limit=1)))
    labels = {KAI_QUEUE_LABEL: "team", "ray.io/identifier": "secret-186-head"}
    for name in ("gpu", "other", "operator", "node", "pod", "scheduler", "default-scheduler", "cycle", "watcher"):
        made.add_pod(pod(name, cpu=1, gpu=1, labels=labels))
    made.cycle()
    code, said = run("report-bug", str(tmp_path / "bug.log.gz"), f"--file={write_file(tmp_path / 'l.gz', made.events)}")
    assert (code, "otherwise" in said) == (0, False), said
    assert "secret" not in text_of(tmp_path / "bug.log.gz")
    assert run("replay", f"--file={tmp_path / 'bug.log.gz'}")[1].endswith(" 0 differences\n")


#: Names of one to four letters with hyphens between them, and after a dot of two more; a regex takes seconds to read.
_NAMES = st.builds(
    lambda begin, more, end: "".join((begin, *more, end)),
    st.sampled_from("ab"),
    st.lists(st.sampled_from(("a", "b", "-a", "-b")), max_size=3),
    st.sampled_from(("", ".a", ".b", ".aa", ".ab", ".ba", ".bb")),
)


@given(st.sets(_NAMES))
@example({"a", "b-a", "a-b", "a-b-a"})
def test_pseudonyms_keep_the_order_and_what_names_are_made_of(names: set[str]) -> None:
    hidden = Pseudonyms.for_names(names, key=b"").text
    assert sorted(names, key=hidden) == sorted(names)
    assert len({hidden(name) for name in names} - names) == len(names)
    for one, other in product(names, names):
        for mark in "-.":
            if (made := f"{one}{mark}{other}") in names:
                assert hidden(made) == f"{hidden(one)}{mark}{hidden(other)}"


def test_pseudonyms_keep_the_order_also_beside_common_names() -> None:
    names = ["alpha", "alpine", "default", "init", "kube-public", "kubeflow", "zoo", "17"]
    pseudonyms = Pseudonyms.for_names(set(names), key=b"")
    made = [pseudonyms.text(name) for name in names]
    assert made[:7] == sorted(set(made[:7]))
    assert (made[2], made[4], made[7]) == ("default", "kube-public", "17")
    assert pseudonyms.text("Job.batch/default/alpha") == f"Job.batch/default/{made[0]}"
    assert pseudonyms.document({"kind": "init", "name": "init"}) == {"kind": "init", "name": made[3]}
