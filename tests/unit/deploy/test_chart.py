"""The Helm chart: what it renders is what deploy/k8s is, and Kubernetes 1.31 to 1.37 take it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
from kaicore.kube.kinds.operands.specs import ConfigSpec, read_shard
from kaicore.kube.kinds.operands.templates import exporter_operands, read_templates, scheduler_operands
from kaicore.runtime.shard_settings import book_of, read_shard_settings
from kaicore.yaml_text import load_yaml

from scripts import chart
from scripts.kube_schemas import VERSIONS, problems, without_schemas
from tests.given.examples import FEW

Json = dict[str, Any]

EVERYTHING: Json = load_yaml(chart.EVERYTHING.read_text())
#: What comes or goes between two versions is unknown to the first or to the last one; `make chart` asks all.
CHECKED = (VERSIONS[0], VERSIONS[-1]) if FEW else VERSIONS
USERS = ("relay", "scheduler", "binder", "ingest", "watcher", "projector", "hub")
#: The log and the bus by TLS, as servers elsewhere have it.
SECURE: Json = {
    "postgres": {"tls": {"enabled": True, "authority": {"kind": "ConfigMap", "name": "house-authority"}}},
    "nats": {"tls": {"enabled": True, "servers": ["nats-0.hub:4222", "nats-1.hub:4222"]}},
}
#: The same on the servers of a trial.
SECURE_TRIAL: Json = {
    **EVERYTHING,
    "postgres": {**EVERYTHING["postgres"], "tls": {"enabled": True}},
    "nats": {"enabled": True, "tls": {"enabled": True, "publicKeys": dict.fromkeys(USERS, "U" + "A" * 55)}},
}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    """Helm would tell of each link to a file outside of the chart."""
    helm_python.disable_logging()


def by_name(objects: list[Json]) -> dict[tuple[str, str], Json]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_chart_is_without_findings_for_each_supported_kubernetes(values: Json) -> None:
    assert without_schemas() == []
    assert chart.findings(values, CHECKED) == []


def test_manifests_are_those_of_the_chart() -> None:
    made = chart.manifests()
    folders = (chart.MANIFESTS, chart.ROOT / "deploy/hub", chart.SHARING)
    written = {path: path.read_text() for folder in folders for path in folder.glob("*.yaml")}
    for folder in (chart.MANIFESTS, chart.SHARING):
        del written[folder / "kustomization.yaml"]
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


def test_releases_of_two_namespaces_share_no_name_and_bind_their_own_accounts() -> None:
    values = {**EVERYTHING, "operator": {"enabled": True, "definitions": False}}
    names = []
    for namespace in ("kai-system", "kai-second"):
        rendered = [one for one in chart.objects(values, namespace=namespace) if one["kind"] != _DEFINITION]
        names.append({(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in rendered})
        for binding in (one for one in rendered if one["kind"].endswith("RoleBinding")):
            role, place = binding["roleRef"], binding["metadata"].get("namespace")
            assert (role["kind"], place if role["kind"] == "Role" else None, role["name"]) in names[-1]
            assert {subject["namespace"] for subject in binding["subjects"]} <= {namespace, place}
    assert names[0] & names[1] == set()


def pods_of(values: Json) -> dict[str, Json]:
    """The pods of each workload, by its name."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in chart.objects(values)
        if "template" in one.get("spec", {})
    }


def environment_of(pod: Json) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in pod["containers"][0].get("env", [])}


def files_of(pod: Json) -> dict[str, str]:
    """The files that a pod's projected volumes give its container, and which Secret or ConfigMap each is of."""
    sources = {
        volume["name"]: volume["projected"]["sources"] for volume in pod.get("volumes", []) if "projected" in volume
    }
    return {
        f"{mount['mountPath']}/{item['path']}": f"{kind} {source['name']}/{item['key']}"
        for mount in pod["containers"][0].get("volumeMounts", [])
        for projected in sources.get(mount["name"], [])
        for kind, source in projected.items()
        for item in source.get("items", [])
    }


@pytest.mark.parametrize(("side", "other"), [("hub", "spoke"), ("spoke", "hub")])
def test_services_of_hub_and_spoke_reach_log_and_bus_by_tls_with_keys_and_authorities_of_secrets(
    side: str, other: str
) -> None:
    on = {
        "hub": {"dispatch": {"enabled": True}},
        "spoke": {"registration": {"enabled": True}, "webhook": {"enabled": True}},
    }
    clients = {"log": 0, "bus": 0}
    for name, pod in pods_of({**SECURE, side: on[side], other: {"enabled": False}}).items():
        environment, files = environment_of(pod), files_of(pod)
        if "KAI_DATABASE_URL" in environment:
            clients["log"] += 1
            assert environment["PGSSLMODE"] == "verify-full"
            assert files[environment["PGSSLROOTCERT"]] == "configMap house-authority/ca.crt"
        if "KAI_NATS_URL" in environment:
            clients["bus"] += 1
            # No secret: the seed is in a file.
            access = "?nkey=/etc/kai/nats/seed&ca=/etc/kai/nats/ca.crt"
            assert environment["KAI_NATS_URL"] == f"tls://nats-0.hub:4222,tls://nats-1.hub:4222{access}"
            assert files["/etc/kai/nats/seed"] == f"secret kai-nats-{name.removeprefix('kai-')}/seed"
            assert files["/etc/kai/nats/ca.crt"] == "secret kai-nats-authority/ca.crt"
    assert clients == {"hub": {"log": 6, "bus": 4}, "spoke": {"log": 5, "bus": 3}}[side]


def test_no_volume_is_mounted_below_another_one() -> None:
    """Nothing could make a directory for it there: the other one is read-only."""
    for values in (EVERYTHING, SECURE_TRIAL):
        for pod in pods_of(values).values():
            mounts = [Path(mount["mountPath"]) for mount in pod["containers"][0].get("volumeMounts", [])]
            assert not [(one, other) for one in mounts for other in mounts if one in other.parents]


def test_servers_of_a_trial_ask_for_tls_and_roll_out_when_what_they_read_has_changed() -> None:
    rendered = chart.objects(SECURE_TRIAL)
    assert list(problems(rendered, VERSIONS[-1])) == []
    objects = by_name(rendered)
    assert "tls {" in objects["ConfigMap", "nats"]["data"]["nats-server.conf"]
    assert "hostssl" in objects["ConfigMap", "postgres-tls"]["data"]["pg_hba.conf"]
    nats, postgres = (objects["StatefulSet", name]["spec"]["template"] for name in ("nats", "postgres"))
    assert {f"NATS_{user.upper()}_NKEY" for user in USERS} == environment_of(nats["spec"]).keys()
    assert files_of(nats["spec"]).keys() == {"/etc/nats/tls/tls.crt", "/etc/nats/tls/tls.key"}
    assert files_of(postgres["spec"]).keys() == {"/etc/postgres/tls.crt", "/etc/postgres/tls.key"}
    assert "ssl=on" in postgres["spec"]["containers"][0]["args"]
    # Who has a seed made it: the chart makes no secret of a client.
    assert ("Secret", "kai-nats-relay") not in objects
    clear = by_name(chart.objects(EVERYTHING))["StatefulSet", "nats"]["spec"]["template"]
    assert clear["metadata"]["annotations"] != nats["metadata"]["annotations"]


def test_exporter_publishes_topologies_with_rights_a_token_and_a_way_to_the_api_of_its_own() -> None:
    objects = by_name(chart.objects({"spoke": {"exporter": {"publishNrt": True}}}))
    pod = objects["DaemonSet", "kai-exporter"]["spec"]["template"]["spec"]
    assert environment_of(pod)["KAI_PUBLISH_NRT"] == "true"
    assert pod["automountServiceAccountToken"]
    binding = objects["ClusterRoleBinding", "kai-exporter-publishes"]
    assert [subject["name"] for subject in binding["subjects"]] == [pod["serviceAccountName"]]
    assert ("ClusterRole", binding["roleRef"]["name"]) in objects
    way = objects["NetworkPolicy", "kai-to-kubernetes"]["spec"]["podSelector"]["matchExpressions"][0]["values"]
    assert "kai-exporter" in way
    for key in (("ClusterRole", "kai-exporter-publishes"), ("ClusterRoleBinding", "kai-exporter-publishes")):
        assert key not in by_name(chart.objects({}))


def test_operator_makes_what_the_values_say_and_the_network_lets_it_out() -> None:
    values = {
        **SECURE,
        "operator": {"enabled": True},
        "disruptionBudgets": False,
        "hub": {"scheduler": {"shards": [], "priorityClassName": "high"}},
        "spoke": {"exporter": {"enabled": False, "publishNrt": True}},
    }
    objects = by_name(chart.objects(values))
    assert not {("DaemonSet", "kai-exporter"), ("Deployment", "kai-scheduler")} & objects.keys()
    assert ("NetworkPolicy", "kai-exporter-to-ingest") in objects
    files = objects["ConfigMap", "kai-operator-templates"]["data"]
    owner = {"kind": "SchedulingShard", "metadata": {"name": "red", "uid": "u"}, "spec": {"partitionLabelValue": "red"}}
    operands = by_name(
        [
            *scheduler_operands(
                read_templates(files["scheduler.yaml"]), owner, read_shard(owner), ConfigSpec(), namespace="n", image=""
            ),
            *exporter_operands(read_templates(files["exporter.yaml"]), owner, ConfigSpec(), namespace="n", image=""),
        ]
    )
    assert {kind for kind, _ in operands} == {"ServiceAccount", "ConfigMap", "Deployment", "DaemonSet"}
    scheduler = operands["Deployment", "kai-scheduler-red"]["spec"]["template"]["spec"]
    assert scheduler["priorityClassName"] == "high"
    assert files_of(scheduler)["/etc/kai/nats/seed"] == "secret kai-nats-scheduler/seed"
    mounts = [mount["mountPath"] for mount in scheduler["containers"][0]["volumeMounts"]]
    assert sorted(mounts) == ["/etc/kai/config", "/etc/kai/nats", "/etc/kai/postgres"]
    exporter = operands["DaemonSet", "kai-exporter"]["spec"]["template"]["spec"]
    assert environment_of(exporter)["KAI_PUBLISH_NRT"] == "true"
    operator = objects["Deployment", "kai-operator"]["spec"]["template"]
    assert environment_of(operator["spec"])["KAI_TEMPLATES_DIR"] in (
        mount["mountPath"] for mount in operator["spec"]["containers"][0]["volumeMounts"]
    )


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


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
def test_overlay_of_shared_gpus_is_what_the_chart_makes_of_them_and_kubernetes_takes_it() -> None:
    done = subprocess.run(["kubectl", "kustomize", chart.SHARING], capture_output=True, text=True, check=True)
    overlaid = list(chart.documents(done.stdout))
    values = load_yaml((chart.CHART / "ci/kustomize-values.yaml").read_text())
    values["spoke"]["gpuSharing"] = {"enabled": True}
    of_chart = by_name(chart.objects(values))
    kinds = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ConfigMap")
    sharing = [key for key in of_chart if key[0] in kinds and ("gpu" in key[1] or "reservation" in key[1])]
    sharing += [("ConfigMap", "kai-scheduler")]
    deployments = [("Deployment", f"kai-{name}") for name in ("binder", "scheduler", "webhook")]
    assert len(sharing) == 7
    assert {key: by_name(overlaid)[key] for key in [*sharing, *deployments]} == {
        key: of_chart[key] for key in [*sharing, *deployments]
    }
    assert [problem for one in CHECKED for problem in problems(overlaid, one)] == []


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
    names = ("kai-scheduler", "kai-scheduler-red", "kai-scheduler-west", "kai-scheduler-next")
    specs = [objects["Deployment", name]["spec"] for name in names]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors = [objects[kind, name]["spec"]["selector"]["matchLabels"] for name in names]
        for number, spec in enumerate(specs):
            labels = spec["template"]["metadata"]["labels"]
            assert [selector.items() <= labels.items() for selector in selectors].index(True) == number
            assert sum(selector.items() <= labels.items() for selector in selectors) == 1
    config = load_yaml(objects["ConfigMap", "kai-scheduler-red"]["data"]["scheduler.yaml"])
    sharing = {"gpu_sharing": True, "gpu_reservation_namespace": "kai-resource-reservation"}
    policies = config.pop("policies")
    assert config == {"node_pool": "red", "placement_strategy": "spread", **sharing}
    assert policies == [{"file": "/etc/kai/policies/night.py"}, {"name": "house"}]
    assert objects["Deployment", "kai-scheduler-red"]["spec"]["replicas"] == 3
    # The next version of a shard's scheduler, of its own image: its shadow, until it is promoted.
    (container,) = specs[-1]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/kai-ledger:next"
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert (environment["KAI_SHARD"], environment["KAI_SHADOW"]) == ("default", "kai-ledger")


def test_policies_are_files_where_shards_name_them_and_where_their_code_is_needed(tmp_path: Path) -> None:
    objects = by_name(chart.objects(EVERYTHING))
    volume, mount = {"name": "policies", "configMap": {"name": "kai-policies"}}, "/etc/kai/policies"
    for name in ("kai-scheduler", "kai-scheduler-red", "kai-api", "kai-hub"):
        template = objects["Deployment", name]["spec"]["template"]
        assert volume in template["spec"]["volumes"]
        (container,) = template["spec"]["containers"]
        assert {"name": "policies", "mountPath": mount, "readOnly": True} in container["volumeMounts"]
        # They are read at the start: with other files, the pods are made anew.
        assert template["metadata"]["annotations"]["kai.scheduler/policies"]
    for name in ("kai-api", "kai-hub"):
        environment = environment_of(objects["Deployment", name]["spec"]["template"]["spec"])
        assert environment["KAI_POLICIES"] == f"{mount},house"
    assert volume["configMap"]["name"] in objects["ConfigMap", "kai-operator-templates"]["data"]["scheduler.yaml"]
    for name, source in objects["ConfigMap", "kai-policies"]["data"].items():
        (tmp_path / name).write_text(source)
    settings = objects["ConfigMap", "kai-scheduler-red"]["data"]["scheduler.yaml"]
    document = load_yaml(settings.replace(mount, str(tmp_path)))
    document["policies"].pop()
    (tmp_path / "scheduler.yaml").write_text(json.dumps(document))
    config = read_shard_settings(tmp_path / "scheduler.yaml")
    assert [one.name for one in config.policies] == ["night"]
    assert book_of([str(tmp_path)]).known(config.policies) == config.policies


def test_migration_runs_before_services_are_changed() -> None:
    for kind in ("ServiceAccount", "Job"):
        annotations = by_name(chart.objects({}))[kind, "kai-migrate"]["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        # Helm does not delete hooks with a release.
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    # A hook would wait for the Postgres that comes after it.
    assert "annotations" not in by_name(chart.objects(EVERYTHING))["Job", "kai-migrate-1"]["metadata"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"hub": {"relay": {"replica": 1}}}, "/hub/relay"),
        ({"postgres": {"enabled": True}}, "/postgres/passwords/append"),
        ({"hub": {"enabled": False}, "spoke": {"enabled": False}}, "/spoke/enabled"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"hub": {"policies": {"files": {"night.yaml": "x"}}}}, "/hub/policies/files"),
        ({"nats": {"tls": {"enabled": True}}}, "/nats/tls/servers"),
        ({"nats": {"tls": {"servers": ["tls://nats:4222"]}}}, "/nats/tls/servers/0"),
        ({"nats": {"enabled": True, "tls": {"enabled": True, "publicKeys": {}}}}, "/nats/tls/publicKeys.*'relay'"),
        ({"postgres": {"tls": {"authority": {"kind": "File"}}}}, "/postgres/tls/authority/kind"),
        ({"spoke": {"exporter": {"publishNrt": True, "stateFiles": False}}}, "/spoke/exporter/stateFiles"),
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
