"""The desired objects for a Config and a set of shards: a table, with errors by field and value."""

from pathlib import Path
from typing import Any

import pytest
from kai_operator.carrying_out import status_of
from kaicore.kube.kinds.operands.plan import Given, Part, PresentObjects, lacks, plan
from kaicore.kube.kinds.operands.specs import MANAGED_BY, OPERATOR, key_of, read_shard, title_of
from kaicore.kube.kinds.operands.templates import read_templates
from kaicore.rules.objects.mappings import Object
from kaicore.yaml_text import load_yaml

DEPLOY = Path(__file__).parents[3] / "deploy" / "k8s"
EXPORTER, SCHEDULER = (read_templates((DEPLOY / f"{name}.yaml").read_text()) for name in ("exporter", "scheduler"))
GIVEN = Given(namespace="kai-system", image="kai:1", exporter=EXPORTER, scheduler=SCHEDULER)
NUMA = {"plugins": {"numa": {"enabled": True}}}


def owner(kind: str, name: str, spec: Any, **metadata: Any) -> Object:
    made = {"name": name, "uid": f"uid-{name}", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"kind": kind, "metadata": made | metadata, "spec": spec}


def config(name: str = "kai-config", **spec: Any) -> Object:
    return owner("Config", name, {"cluster": "default", **spec})


def shard(name: str, spec: Any, **metadata: Any) -> Object:
    return owner("SchedulingShard", name, spec, **metadata)


def planned(configs: list[Object], shards: list[Object], objects: list[Object] | None = None) -> dict[str, Part]:
    parts = plan(PresentObjects(configs=configs, shards=shards, objects=objects or []), GIVEN)
    return {part.owner["metadata"]["name"]: part for part in parts}


def titles(part: Part) -> list[str] | None:
    return None if part.wanted is None else sorted(title_of(operand) for operand in part.wanted)


@pytest.mark.parametrize(
    ("enabled", "specs", "wanted", "because"),
    [
        (None, [], False, "no SchedulingShard enables NUMA"),
        (None, [{}], False, "no SchedulingShard enables NUMA"),
        # The name alone does not enable it.
        (None, [{"plugins": {"numa": {"arguments": {}}}}], False, "no SchedulingShard enables NUMA"),
        (None, [{"plugins": {"numa": {"enabled": False}}}], False, "no SchedulingShard enables NUMA"),
        (None, [{}, NUMA], True, "NUMA is enabled in s1"),
        (None, [{"settings": {"numa": True}}], True, "NUMA is enabled in s0"),
        (None, [NUMA | {"settings": {"numa": False}}], False, "no SchedulingShard enables NUMA"),
        # A shard that cannot be read counts, too.
        (None, [NUMA | {"replicas": 0}], True, "NUMA is enabled in s0"),
        (True, [], True, "numaPlacementExporter.service.enabled is true"),
        (False, [NUMA], False, "numaPlacementExporter.service.enabled is false"),
    ],
)
def test_exporter_is_wanted_by_its_three_states(
    enabled: bool | None, specs: list[Any], wanted: bool, because: str
) -> None:
    service = {} if enabled is None else {"enabled": enabled}
    shards = [shard(f"s{number}", {"partitionLabelValue": str(number), **spec}) for number, spec in enumerate(specs)]
    part = planned([config(numaPlacementExporter={"service": service})], shards)["kai-config"]
    assert titles(part) == (["DaemonSet kai-exporter", "ServiceAccount kai-exporter"] if wanted else [])
    assert part.because == because


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ({}, {"node_pool": "", "numa": False}),
        ({"partitionLabelValue": "red"}, {"node_pool": "red", "numa": False}),
        (
            {"placementStrategy": {"gpu": "spread", "cpu": "binpack"}},
            {"node_pool": "", "numa": False, "placement_strategy": "spread", "cpu_placement_strategy": "binpack"},
        ),
        (
            {"minRuntime": {"reclaimMinRuntime": "1h30m"}, "kValue": 0.25},
            {"node_pool": "", "numa": False, "fair_share": {"reclaim_min_runtime_us": 5_400_000_000, "k_milli": 250}},
        ),
        (
            {"actions": {"consolidation": {"enabled": False}, "preempt": {"priority": 900}}},
            {"node_pool": "", "numa": False, "actions": ["preempt", "allocate", "reclaim", "stale-gang"]},
        ),
        (
            {"plugins": {"numa": {"enabled": True, "arguments": {"ignoreList": "memory, cpu"}}}},
            {"node_pool": "", "numa": True, "ignore_list": ["memory", "cpu"]},
        ),
        (
            {"kValue": 2, "settings": {"fair_share": {"window_hours": 24}, "repair": False}},
            {"node_pool": "", "numa": False, "fair_share": {"k_milli": 2000, "window_hours": 24}, "repair": False},
        ),
    ],
)
def test_kais_fields_are_settings_of_the_scheduler_and_its_own_win(spec: Any, settings: Any) -> None:
    read = read_shard(shard("red", spec))
    assert (read.settings, read.faults) == (settings, ())


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"replicas": 0}, "spec.replicas: must be 1 to 20: 0"),
        ({"replicas": "two"}, "spec.replicas: Expected `int`, got `str`: 'two'"),
        ({"placementStrategy": {"gpu": "wide"}}, "spec.placementStrategy.gpu: Invalid enum value 'wide': 'wide'"),
        ({"partitionLabelValue": "-"}, "spec.partitionLabelValue: is no value of a label: '-'"),
        ({"actions": {"reclam": {}}}, "spec.actions: no such action; did you mean 'reclaim'?: 'reclam'"),
        (
            {"plugins": {"numa": {"arguments": {"ignoreLists": "cpu"}}}},
            "spec.plugins.numa.arguments.ignoreLists: no such argument; did you mean 'ignoreList'?: 'cpu'",
        ),
        ({"settings": {"repare": True}}, "spec.settings.repare: no such setting; did you mean 'repair'?: True"),
        ({"settings": {"repair": 1}}, "spec.settings.repair: Expected `bool`, got `int`: 1"),
        (
            {"settings": {"policies": [{"path": "a.py"}]}},
            "spec.settings.policies[0]: Object contains unknown field `path`: {'path': 'a.py'}",
        ),
        (
            {"settings": {"fair_share": {"window_hours": 0}}},
            "spec.settings: fair share: window_hours: must be 1 to 672: 0",
        ),
        (
            {"resources": {"limits": {"memory": "lots"}}},
            "spec.resources.limits.memory: not a Kubernetes quantity: 'lots'",
        ),
        ("nothing", "spec: Expected `object`, got `str`: 'nothing'"),
    ],
)
def test_what_cannot_be_in_a_shard_is_told_by_field_and_value(spec: Any, fault: str) -> None:
    part = planned([config()], [shard("red", spec)])["red"]
    assert (part.reason, part.because, part.wanted) == ("InvalidSpec", fault, None)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (
            {"numaPlacementExporter": {"service": {"enabled": "auto"}}},
            "spec.numaPlacementExporter.service.enabled: Expected `bool | null`, got `str`: 'auto'",
        ),
        (
            {"numaPlacementExporter": {"pollInterval": "1ms", "sysfsHostPath": "sys"}},
            "spec.numaPlacementExporter.pollInterval: must be 0.05s at least: '1ms'; "
            "spec.numaPlacementExporter.sysfsHostPath: must be an absolute path: 'sys'",
        ),
    ],
)
def test_a_config_that_cannot_be_leaves_everything_as_it_is(spec: Any, fault: str) -> None:
    parts = planned([config(**spec)], [shard("red", {})])
    assert (parts["kai-config"].because, parts["kai-config"].wanted) == (fault, None)
    assert (parts["red"].reason, parts["red"].wanted) == ("NoConfig", None)


def test_only_one_config_counts_and_those_of_kais_own_definition_are_not_looked_at() -> None:
    theirs = owner("Config", "kai-config", {"namespace": "kai"})
    assert planned([theirs], [shard("red", {})])["red"].reason == "NoConfig"
    parts = planned([config(), config("other")], [])
    assert {name: part.reason for name, part in parts.items()} == {"kai-config": "NotWanted", "other": "NotTheConfig"}


def test_of_two_shards_of_one_pool_the_older_one_is_made_and_what_goes_is_left_alone() -> None:
    older = shard("z", {}, creationTimestamp="2025-01-01T00:00:00Z")
    going = shard("y", {}, creationTimestamp="2024-01-01T00:00:00Z", deletionTimestamp="2026-01-01T00:00:00Z")
    parts = planned([config()], [shard("a", {}), older, going])
    assert parts["z"].wanted
    assert parts["a"].because == "spec.partitionLabelValue: is SchedulingShard z's already: ''"
    assert "y" not in parts


@pytest.mark.parametrize(
    ("spec", "image"),
    [({}, "kai:1"), ({"image": "kai:2"}, "kai:2"), ({"image": "kai:2", "scheduler": {"image": "kai:3"}}, "kai:3")],
)
def test_schedulers_take_the_operators_image_unless_the_config_names_one(spec: Any, image: str) -> None:
    wanted = planned([config(**spec)], [shard("red", {})])["red"].wanted or ()
    (scheduler,) = (one for one in wanted if one["kind"] in ("Deployment", "StatefulSet"))
    assert scheduler["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_operands_are_the_manifests_with_what_config_and_shard_say() -> None:
    exporter = {
        "service": {"enabled": True, "resources": {"limits": {"memory": "1Gi"}}},
        "nodeSelector": {"numa": "true"},
        "tolerations": [{"key": "gpu"}],
        "pollInterval": "1.5s",
        "podResourcesHostPath": "/run/pr",
        "sysfsHostPath": "/fake/",
    }
    parts = planned(
        [config(cluster="paris", numaPlacementExporter=exporter)], [shard("red", {"replicaMode": "Shared"})]
    )
    (daemons,) = (one for one in parts["kai-config"].wanted or () if one["kind"] == "DaemonSet")
    pod = daemons["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert (variables["KAI_CLUSTER"], variables["KAI_POLL_INTERVAL_S"]) == ("paris", "1.5")
    assert (container["image"], container["resources"]) == ("kai:1", {"limits": {"memory": "1Gi"}})
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"numa": "true"}, [{"key": "gpu"}])
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    assert (paths["podresources"], paths["numa"]) == ("/run/pr", "/fake/devices/system/node")

    wanted = {one["kind"]: one for one in parts["red"].wanted or ()}
    assert set(wanted) == {"ConfigMap", "Service", "ServiceAccount", "StatefulSet", "PodDisruptionBudget"}
    workload = wanted["StatefulSet"]
    account = workload["spec"]["template"]["spec"]["serviceAccountName"]
    assert account == wanted["ServiceAccount"]["metadata"]["name"] == "kai-scheduler-red"
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert wanted["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert wanted["Service"]["spec"]["selector"].items() <= labels.items()
    assert labels["kai.scheduler/shard"] == "red"
    assert load_yaml(wanted["ConfigMap"]["data"]["scheduler.yaml"]) == {"node_pool": "", "numa": False}
    for operand in wanted.values():
        assert operand["metadata"]["ownerReferences"][0]["uid"] == "uid-red"


def test_a_plan_that_was_carried_out_leaves_nothing_to_do_and_what_is_too_much_is_pruned() -> None:
    configs, shards = [config(numaPlacementExporter={"service": {"enabled": True}})], [shard("red", {})]
    first = planned(configs, shards)
    live = [operand for part in first.values() for operand, _ in part.apply]
    assert len(live) == 6
    again = planned(configs, shards, live)
    assert [(part.apply, part.prune, part.taken) for part in again.values()] == [([], [], [])] * 2
    off = planned([config(numaPlacementExporter={"service": {"enabled": False}})], shards, live)["kai-config"]
    assert sorted(title_of(obj) for obj in off.prune) == ["DaemonSet kai-exporter", "ServiceAccount kai-exporter"]
    # What has a name that is wanted, but another owner or none, is nobody's to change.
    theirs = [{**one, "metadata": {"name": one["metadata"]["name"]}} for one in live]
    assert all(len(part.taken) == len(part.wanted or ()) for part in planned(configs, shards, theirs).values())
    adopted = [{**one, "metadata": {"name": one["metadata"]["name"], "labels": {MANAGED_BY: OPERATOR}}} for one in live]
    assert all(len(part.apply) == len(part.wanted or ()) for part in planned(configs, shards, adopted).values())


@pytest.mark.parametrize(
    ("wanted", "live", "lacking"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [2, 1]}}, "a.b[0]"),
        ({"a": {}}, {}, ""),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}, {"name": "A", "value": "1"}]}, ""),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}]}, "env[name=A]"),
        ({"resources": {"limits": {"cpu": "1000m"}}}, {"resources": {"limits": {"cpu": "1"}}}, ""),
        (
            {"resources": {"limits": {"cpu": "1000m"}}},
            {"resources": {"limits": {"cpu": "2"}}},
            "resources.limits.cpu",
        ),
        ({"tolerations": [{"operator": "Exists"}]}, {"tolerations": []}, "tolerations"),
        ({"a": {"b": 1}}, {"a": "x"}, "a"),
    ],
)
def test_an_object_lacks_what_was_said_of_it_and_not_what_others_add(wanted: Any, live: Any, lacking: str) -> None:
    assert lacks(wanted, live) == lacking


def test_a_status_tells_of_the_rollout_and_is_written_only_when_it_changes() -> None:
    part = planned([config()], [shard("red", {})])["red"]
    live = {
        key_of(operand): {**operand, "metadata": {**operand["metadata"], "generation": 1}} for operand, _ in part.apply
    }
    deployment = live["Deployment", "kai-scheduler-red"]
    deployment["status"] = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}
    status = status_of(part, live, {}, now="2026-11-22T10:00:00Z")
    assert status is not None
    shown = {one["type"]: (one["status"], one["reason"], one["message"]) for one in status["conditions"]}
    assert shown["Available"] == ("True", "Available", "Deployment kai-scheduler-red: 1 of 2 replicas")
    assert shown["Progressing"] == ("True", "RollingOut", "Deployment kai-scheduler-red: 1 of 2 replicas")
    assert shown["Degraded"][0] == "False"
    assert {one["observedGeneration"] for one in status["conditions"]} == {3}

    part.owner["status"] = status
    assert status_of(part, live, {}, now="2026-11-22T11:00:00Z") is None
    refused = {("Deployment", "kai-scheduler-red"): "403 Forbidden: quota"}
    status = status_of(part, live, refused, now="2026-11-22T12:00:00Z")
    assert status is not None
    times = {one["type"]: one["lastTransitionTime"][11:13] for one in status["conditions"]}
    assert times == {"Available": "10", "Progressing": "10", "Degraded": "12", "SettingsIgnored": "10"}
    degraded = next(one for one in status["conditions"] if one["type"] == "Degraded")
    assert degraded["message"] == "Deployment kai-scheduler-red: 403 Forbidden: quota"
