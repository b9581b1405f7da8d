"""`kai simulate` as a process: what it prints, and what it says when the question is bad."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kaicore.yaml_text import load_yaml_all

from tests.given.logs.simulating import GPU, brief, node, pod
from tests.given.processes.called_kai import caller
from tests.given.processes.kai_commands import kai as run_kai
from tests.given.shared_data import require_shared

EXAMPLES = Path(__file__).parents[2] / "examples"


def kai(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_kai("simulate", *map(str, arguments), stdin=stdin)


def document(*arguments: str | Path, stdin: str = "") -> dict[str, Any]:
    done = kai(*arguments, "-o", "json", stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_simulation_has_the_same_bytes_in_every_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (str(EXAMPLES), "--profile", "demo24", "--kubelet", "-o", "json")
    # A fork has a hash seed that is not this process's.
    there, (_, here) = kai(*asked), caller(monkeypatch, capsys)("simulate", *asked)
    assert (there.stdout, there.stderr) == (here, "")
    pods = json.loads(here)["pods"]
    assert {one["phase"] for one in pods} == {"Bound", "Evicted", "Pending"}
    assert "never-fits" in {one["name"] for one in pods if one["phase"] == "Pending"}


def test_gangs_are_simulated_on_24_nodes_from_files(tmp_path: Path) -> None:
    """Nodes in a folder of files give what the fleet's profile gives, with the files in any order."""
    from kai_fleet.offline import OfflineKubelets

    for number, item in enumerate(OfflineKubelets("demo24").objects()):
        (tmp_path / f"{number:02}.json").write_text(json.dumps(item))
    gangs = EXAMPLES / "gangs-close-together.yaml"
    assert document(gangs, tmp_path) == document(tmp_path, gangs) == document(gangs, "--profile", "demo24")


def test_what_kubectl_prints_is_understood() -> None:
    """As of `kubectl get nodes,pods,noderesourcetopologies,jobs -A -o json | kai simulate -`."""
    items = list(load_yaml_all(node() + pod("a") + pod("b", spec="nodeName: n1", status="{phase: Running}")))
    kubectl = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}
    printed = document("-", stdin=json.dumps(kubectl))
    assert brief(printed) == {"a": "n1 node-0", "b": "n1"}
    # And what an API server answers, with items that do not name their kind.
    pods = [{key: one[key] for key in ("metadata", "spec")} for one in items if one["kind"] == "Pod"]
    listed = {"apiVersion": "v1", "kind": "PodList", "items": pods}
    nodes = {"apiVersion": "v1", "kind": "List", "items": [one for one in items if one["kind"] != "Pod"]}
    assert brief(document("-", stdin=f"{json.dumps(listed)}\n---\n{json.dumps(nodes)}\n")) == brief(printed)


def test_objects_that_a_real_api_server_wrote_are_read(tmp_path: Path) -> None:
    """All lists of nodes and pods in the recorded exchanges, each object as it was last."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    with require_shared("data/apiserver/exchanges.jsonl").open() as lines:
        for line in lines:
            body = json.loads(line)["response"].get("body")
            if not isinstance(body, dict) or body.get("kind") not in ("NodeList", "PodList"):
                continue
            for item in body["items"]:
                whole = {"apiVersion": "v1", "kind": body["kind"].removesuffix("List"), **item}
                latest[whole["kind"], whole["metadata"]["name"]] = whole
    (tmp_path / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*latest.values()]}))
    done = kai(tmp_path, "--kubelet", "--scheduler-name", "default-scheduler", "-o", "json")
    assert done.returncode == 0
    pods = {name for kind, name in latest if kind == "Pod"}
    assert pods
    assert {one["name"] for one in json.loads(done.stdout)["pods"]} == pods


def test_the_table_ends_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(node() + pod("fits", gpus=2) + pod("old", spec="nodeName: n1"))
    job = f"spec: {{containers: [{{name: main, resources: {{limits: {{{GPU}: 3}}}}}}]}}"
    (tmp_path / "b.yml").write_text(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: wide}\n"
        f"spec: {{parallelism: 2, template: {{{job}}}}}\n---\n{{apiVersion: v1, kind: Secret, metadata: {{name: s}}}}\n"
    )
    done = kai(tmp_path)
    assert done.returncode == 0
    assert done.stderr == "kai: warning: skipped 1 Secret: it says nothing to this scheduler\n"
    assert done.stdout == (
        "NAMESPACE  POD         PHASE    NODE  ZONES\n"
        "default    fits        Bound    n1    node-0: 1 cpu, 2 nvidia.com/gpu\n"
        "default    wide-24924  Pending  -\n"
        "default    wide-qd6db  Pending  -\n"
        "\n"
        "Pending:\n"
        "  default/wide-24924 and 1 more of Job/wide\n"
        "    - 1 node can never align it: nvidia.com/gpu: 3 needed, 2 in the largest zone (node-0) "
        "(such as n1: TopologyAffinityError)\n"
        "    - would become schedulable if nvidia.com/gpu ≤ 1 (such as n1)\n"
        "\n"
        "1 node, 2 cycles: 1 placed, 2 pending, 1 had a node before\n"
    )
    assert "default    old" in kai(tmp_path, "-o", "wide").stdout


def test_flags_override_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(node("n1") + node("n2") + pod("a") + pod("b"))
    assert brief(document(tmp_path, "--strategy", "spread"))["b"] == "n2 node-0"
    (tmp_path / "settings").write_text("placement_strategy: spread\n")
    assert brief(document(tmp_path, "--scheduler-config", tmp_path / "settings"))["b"] == "n2 node-0"
    both = document(
        tmp_path, "--scheduler-config", tmp_path / "settings", "--strategy", "binpack", "--no-numa", "--cycles", "1"
    )
    assert brief(both) == {"a": "n1", "b": "n1"}
    assert both["cycles"] == 1
    ignoring = document(tmp_path, "--ignore", GPU, "--ignore", "cpu", "--scheduler-name", "mine")
    assert brief(ignoring)["b"] == "n1"


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("a: [", (), "m.yaml: is no YAML at line 2, column 1"),
        ("- 1", (), "m.yaml, document 1: document: not a Kubernetes object"),
        (
            pod("a", gpus=-1),
            (),
            "m.yaml, document 1: Pod default/a: spec.containers[0].resources.limits[nvidia.com/gpu]",
        ),
        (
            "---\n" + pod("a") + pod("b") + pod("a"),
            (),
            "m.yaml, document 4: Pod default/a: metadata.name: is there",
        ),
        (pod("a"), ("--scheduler-config", "/nowhere"), "/nowhere: "),
        (pod("a"), ("--cycles", "-1"), "--cycles: must be 0 or more: -1"),
        (pod("a"), ("--profile", "nowhere"), "profile nowhere: neither one of"),
        (pod("a"), ("--nope",), "no such option: --nope"),
        (pod("a"), ("/nowhere",), "/nowhere: no such file or folder"),
        ("&a [*a]", (), "m.yaml"),
        ("\x00", (), "m.yaml"),
    ],
)
def test_bad_input_to_simulate_is_one_clear_error(
    tmp_path: Path, text: str, arguments: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "m.yaml").write_text(text)
    done = kai(tmp_path / "m.yaml", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kai: ")
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_simulation_without_nodes_says_where_nodes_come_from() -> None:
    last = kai(EXAMPLES / "never-fits.yaml").stdout.splitlines()[-1]
    assert last == "0 nodes, 1 cycle: 0 placed, 1 pending (no nodes: add their manifests, or --profile demo24)"


def test_simulate_without_input_is_refused() -> None:
    done = kai()
    assert (done.returncode, done.stderr) == (
        2,
        "kai: simulate what? Name files or folders, or - for standard input\n",
    )


def test_a_folder_may_hold_more_than_objects(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
    (tmp_path / "values.yaml").write_text("replicas: 3\n")
    (tmp_path / "m.yaml").write_text(node() + pod("a"))
    done = kai(tmp_path, "-o", "json")
    assert (done.returncode, brief(json.loads(done.stdout))) == (0, {"a": "n1 node-0"})
    assert done.stderr == (
        f"kai: warning: skipped {tmp_path}/values.yaml, document 1: not a Kubernetes object\n"
        "kai: warning: skipped 1 Kustomization.kustomize.config.k8s.io: it says nothing to this scheduler\n"
    )


def test_all_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("kind: Pod\n---\napiVersion: v1\nkind: Pod\n" + pod("a", gpus=-1))
    done = kai(file)
    assert done.returncode == 2
    assert done.stderr == (
        f"kai: {file}, document 1: apiVersion: missing or no text: None\n"
        f"     {file}, document 2: Pod: metadata.name: is missing: None\n"
        f"     {file}, document 3: Pod default/a: spec.containers[0].resources.limits[nvidia.com/gpu]: "
        "negative quantity: '-1'\n"
    )
