"""The Helm chart: what it renders is what deploy/k8s is, and Kubernetes 1.31 to 1.37 take it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from scripts import chart
from scripts.kube_schemas import VERSIONS, problems, without_schemas

Json = dict[str, Any]

EVERYTHING: Json = yaml.safe_load(chart.EVERYTHING.read_text())


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    """Helm would tell of each link to a file outside of the chart."""
    helm_python.disable_logging()


def by_name(objects: list[Json]) -> dict[tuple[str, str], Json]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_chart_is_without_findings_for_each_supported_kubernetes(values: Json) -> None:
    assert without_schemas() == []
    assert chart.findings(values) == []


def test_manifests_are_those_of_the_chart() -> None:
    made = chart.manifests()
    folders = (chart.MANIFESTS, chart.ROOT / "deploy/hub")
    written = {path: path.read_text() for folder in folders for path in folder.glob("*.yaml")}
    del written[chart.MANIFESTS / "kustomization.yaml"]
    assert written == made, "run: make chart"


def test_hub_and_spoke_are_two_releases_that_come_to_the_whole() -> None:
    whole = by_name(chart.objects({}))
    hub = by_name(chart.objects({"spoke": {"enabled": False}}))
    spoke = by_name(chart.objects({"hub": {"enabled": False}}))
    assert (
        hub.keys()
        | spoke.keys()
        | {
            ("NetworkPolicy", "kai-scheduler-to-watcher"),
            ("NetworkPolicy", "kai-watcher-from-scheduler"),
        }
        == whole.keys()
    )
    # What is in both is each one's own: no name of the cluster's is in both.
    assert all("namespace" in hub[key]["metadata"] for key in hub.keys() & spoke.keys() if key[0] != _DEFINITION)


def test_shard_that_is_shared_is_a_stateful_set_whose_replicas_are_named_as_their_pods() -> None:
    shards = [{"name": "default", "shared": True, "replicas": 3}, {"name": "red"}]
    there = by_name(chart.objects({"hub": {"scheduler": {"shards": shards}}}))
    shared = there["StatefulSet", "kai-scheduler"]
    (container,) = shared["spec"]["template"]["spec"]["containers"]
    named = {"name": "KAI_REPLICA", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert (shared["spec"]["replicas"], named in container["env"]) == (3, True)
    assert there["Service", shared["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
    assert ("Deployment", "kai-scheduler-red") in there


_DEFINITION = "CustomResourceDefinition"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
@pytest.mark.parametrize(("side", "other"), [("hub", "spoke"), ("spoke", "hub")])
def test_overlay_has_the_services_of_its_side_and_no_others(side: str, other: str) -> None:
    folder = chart.ROOT / "deploy/overlays" / side
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    kinds = ("Deployment", "DaemonSet", "Job", "ServiceAccount", "ClusterRole", "Service")
    rendered = {key for key in by_name(list(chart.documents(done.stdout))) if key[0] in kinds}
    assert rendered == {key for key in by_name(chart.objects({other: {"enabled": False}})) if key[0] in kinds}


def test_objects_have_the_common_labels_and_each_pod_an_account_of_its_own() -> None:
    accounts: list[str] = []
    objects = chart.objects({})
    for one in objects:
        if one["kind"] == _DEFINITION:
            continue
        labels = one["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "component", "managed-by")} <= (
            labels.keys()
        )
        assert labels["app.kubernetes.io/part-of"] == "kai-ledger"
        if "template" in one.get("spec", {}):
            accounts.append(one["spec"]["template"]["spec"]["serviceAccountName"])
    assert len(accounts) == len(set(accounts))
    assert {("ServiceAccount", name) for name in accounts} <= by_name(objects).keys()


def test_shards_are_deployments_with_selectors_settings_and_budgets_of_their_own() -> None:
    objects = by_name(chart.objects(EVERYTHING))
    names = ("kai-scheduler", "kai-scheduler-red", "kai-scheduler-west")
    specs = [objects["Deployment", name]["spec"] for name in names]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors = [objects[kind, name]["spec"]["selector"]["matchLabels"] for name in names]
        for number, spec in enumerate(specs):
            labels = spec["template"]["metadata"]["labels"]
            assert [selector.items() <= labels.items() for selector in selectors].index(True) == number
            assert sum(selector.items() <= labels.items() for selector in selectors) == 1
    config = yaml.safe_load(objects["ConfigMap", "kai-scheduler-red"]["data"]["scheduler.yaml"])
    assert config == {"node_pool": "red", "placement_strategy": "spread"}
    assert objects["Deployment", "kai-scheduler-red"]["spec"]["replicas"] == 3


def test_migration_runs_before_services_are_changed() -> None:
    annotations = by_name(chart.objects({}))["Job", "kai-migrate"]["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    # A hook would wait for the Postgres that comes after it.
    trial = by_name(chart.objects(EVERYTHING))
    assert "annotations" not in trial["Job", "kai-migrate-1"]["metadata"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"hub": {"relay": {"replica": 1}}}, "/hub/relay"),
        ({"postgres": {"enabled": True}}, "/postgres/passwords/append"),
        ({"hub": {"enabled": False}, "spoke": {"enabled": False}}, "/spoke/enabled"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
    ],
)
def test_value_that_cannot_be_meant_is_refused_by_name(values: Json, field: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=field):
        chart.rendered(values)


def test_unknown_field_and_version_that_is_not_served_are_found() -> None:
    meta = {"name": "x", "namespace": "y"}
    misspelled = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selectr": {}}}
    removed = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": {}}
    beta = {"apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "ValidatingAdmissionPolicy", "metadata": meta}
    first, second, third = problems([misspelled, removed, beta], VERSIONS[0])
    assert "Service x: spec: " in first
    assert "selectr" in first
    assert second == "Kubernetes 1.31: PodDisruptionBudget x: policy/v1beta1 is not served"
    assert third.endswith("is deprecated: admissionregistration.k8s.io/v1 is served")


def test_version_and_reference_page_are_of_the_package_and_of_the_schema() -> None:
    text = Path(chart.CHART, "Chart.yaml").read_text()
    assert chart.versions_written(text) == text, "run: make chart"
    assert chart.reference() == chart.REFERENCE.read_text(), "run: make chart"
