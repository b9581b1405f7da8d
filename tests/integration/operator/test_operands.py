"""The operator on a simulated API server, with its own rights: what is asked for is made, kept, and taken away."""

from kaicore.rules.objects.mappings import Object

from tests.integration.operator.conftest import CONFIGS, SHARDS, Site

EXPORTER = ("ServiceAccount kai-exporter", "DaemonSet kai-exporter")
CONFIG = f"{CONFIGS}/kai-config"
NUMA = {"numa": {"enabled": True}}


def scheduler(shard: str) -> tuple[str, ...]:
    """The objects of a shard's scheduler."""
    kinds = ("ServiceAccount", "ConfigMap", "Deployment", "PodDisruptionBudget")
    return tuple(f"{kind} kai-scheduler-{shard}" for kind in kinds)


async def test_exporter_by_its_three_states_and_shards_that_come_and_go_leave_nothing_behind(site: Site) -> None:
    api = site.api
    async with site.operator():
        await site.config()
        reason = await site.until_condition(CONFIG, "Available", "True", "NotWanted")
        assert reason == "no SchedulingShard enables NUMA"

        await site.shard("red", plugins=NUMA)
        await site.shard("blue")
        await site.until_operands(*EXPORTER, *scheduler("red"), *scheduler("blue"))
        # Off, though a shard has NUMA enabled.
        await api.merge(CONFIG, {"spec": {"numaPlacementExporter": {"service": {"enabled": False}}}})
        await site.until_operands(*scheduler("red"), *scheduler("blue"))
        # On, though none has.
        await api.merge(CONFIG, {"spec": {"numaPlacementExporter": {"service": {"enabled": True}}}})
        await api.merge(f"{SHARDS}/red", {"spec": {"plugins": None}})
        await site.until_operands(*EXPORTER, *scheduler("red"), *scheduler("blue"))
        # By the shards again, and none has.
        await api.merge(CONFIG, {"spec": {"numaPlacementExporter": {"service": {"enabled": None}}}})
        await site.until_operands(*scheduler("red"), *scheduler("blue"))

        await api.client.delete(f"{SHARDS}/red")
        await site.until_operands(*scheduler("blue"))
        await api.merge(f"{SHARDS}/blue", {"spec": {"settings": {"numa": True}}})
        await site.until_operands(*EXPORTER, *scheduler("blue"))
        # Without the Config the exporter goes; schedulers stay while their shards do.
        await api.client.delete(CONFIG)
        await site.until_operands(*scheduler("blue"))
        await site.until_condition(f"{SHARDS}/blue", "Available", "False", "NoConfig")
        await api.client.delete(f"{SHARDS}/blue")
        await site.until_operands()


async def test_a_shards_settings_reach_its_scheduler_and_a_change_of_them_rolls_it_out(site: Site) -> None:
    api, path = site.api, site.path("Deployment", "kai-scheduler-red")
    async with site.operator():
        await site.config(cluster="paris")
        await site.shard("red", placementStrategy={"gpu": "spread"}, replicas=3)
        made = await site.until(site.operands, lambda operands: set(scheduler("red")) <= operands)
        assert made == set(scheduler("red"))
        before = await api.get(path)
        (container,) = before["spec"]["template"]["spec"]["containers"]
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert (variables["KAI_CLUSTER"], variables["KAI_SHARD"]) == ("paris", "red")
        assert container["image"] == "kai:test"
        assert before["spec"]["replicas"] == 3

        await api.merge(f"{SHARDS}/red", {"spec": {"kValue": 0.5, "replicas": 1}})
        after = await site.until(lambda: api.get(path), lambda one: one["spec"]["replicas"] == 1)
        settings = (await api.get(site.path("ConfigMap", "kai-scheduler-red")))["data"]["scheduler.yaml"]
        assert "k_milli: 500" in settings
        assert "placement_strategy: spread" in settings
        annotations = [one["spec"]["template"]["metadata"]["annotations"] for one in (before, after)]
        assert annotations[0] != annotations[1], "pods with other settings are other pods"

        # Replicas that share the groups keep their names.
        await api.merge(f"{SHARDS}/red", {"spec": {"replicaMode": "Shared"}})
        shared = {item.replace("Deployment", "StatefulSet") for item in scheduler("red")}
        await site.until_operands(*shared, "Service kai-scheduler-red")
        await api.merge(f"{SHARDS}/red", {"spec": {"replicaMode": "Standby"}})
        await site.until_operands(*scheduler("red"))


async def test_an_operand_that_is_changed_or_deleted_is_restored_and_what_others_add_stays(site: Site) -> None:
    api, path = site.api, site.path("DaemonSet", "kai-exporter")
    async with site.operator():
        await site.config(numaPlacementExporter={"service": {"enabled": True}})
        await site.until_operands(*EXPORTER)
        uid = (await api.get(path))["metadata"]["uid"]

        await api.client.delete(path)
        await site.until(site.operands, lambda operands: set(EXPORTER) <= operands)
        again = await api.get(path)
        assert again["metadata"]["uid"] != uid

        pod = {"spec": {"priorityClassName": None, "nodeSelector": {"zone": "a"}}}
        added = {"metadata": {"annotations": {"restarted": "now"}}, "spec": {"template": pod}}
        await api.merge(path, added)

        def restored(one: Object) -> bool:
            return one["spec"]["template"]["spec"].get("priorityClassName") == "system-node-critical"

        kept = await site.until(lambda: api.get(path), restored)
        assert kept["metadata"]["annotations"]["restarted"] == "now"
        assert kept["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}

        # Its owner is written down again too: without it, it would be left behind.
        await api.merge(path, {"metadata": {"ownerReferences": None}})
        await site.until(lambda: api.get(path), lambda one: one["metadata"].get("ownerReferences"))
        await api.client.delete(CONFIG)
        await site.until_operands()


async def test_a_spec_that_cannot_be_is_told_by_field_and_value_and_the_rest_goes_on(site: Site) -> None:
    api, red = site.api, f"{SHARDS}/red"
    async with site.operator():
        await site.config()
        await site.shard("red")
        await site.until_operands(*scheduler("red"))
        await api.merge(red, {"spec": {"kValue": -1, "minRuntime": {"preemptMinRuntime": "soon"}, "replicas": 5}})
        message = await site.until_condition(red, "Degraded", "True", "InvalidSpec")
        assert "spec.kValue: must be 0 to 1000: -1" in message
        assert "spec.minRuntime.preemptMinRuntime: is no duration such as 90s or 1h30m: 'soon'" in message
        # What was made stays as it was, and the other shard is made.
        await site.shard("blue", args={"v": "4"})
        await site.until_operands(*scheduler("red"), *scheduler("blue"))
        assert (await api.get(site.path("Deployment", "kai-scheduler-red")))["spec"]["replicas"] == 2
        assert "spec.args" in await site.until_condition(f"{SHARDS}/blue", "SettingsIgnored", "True", "NoCounterpart")
        # A second shard of the same pool.
        await site.shard("other", partitionLabelValue="blue")
        message = await site.until_condition(f"{SHARDS}/other", "Degraded", "True", "InvalidSpec")
        assert message == "spec.partitionLabelValue: is SchedulingShard blue's already: 'blue'"

        await api.merge(red, {"spec": {"kValue": None, "minRuntime": None}})
        await site.until_condition(red, "Degraded", "False", "AsWanted")
        await site.until(
            lambda: api.get(site.path("Deployment", "kai-scheduler-red")), lambda one: one["spec"]["replicas"] == 5
        )
        events = await api.items("/apis/events.k8s.io/v1/namespaces/default/events")
        shown = {(event["regarding"]["name"], event["type"], event["reason"]) for event in events}
        assert {("red", "Warning", "InvalidSpec"), ("red", "Normal", "Created"), ("red", "Normal", "Restored")} <= shown


async def test_an_object_of_an_operands_name_that_is_not_the_operators_is_left_alone_and_told(site: Site) -> None:
    api = site.api
    theirs = {"metadata": {"name": "kai-exporter", "namespace": "kai-system"}}
    await api.post(site.path("ServiceAccount"), theirs)
    async with site.operator():
        await site.config(numaPlacementExporter={"service": {"enabled": True}})
        message = await site.until_condition(CONFIG, "Degraded", "True", "NameTaken")
        assert message.startswith("ServiceAccount kai-exporter is there and was not made by the operator")
        await site.until_operands("DaemonSet kai-exporter")
        label = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "kai-operator"}}}
        await api.merge(site.path("ServiceAccount", "kai-exporter"), label)
        await site.until_condition(CONFIG, "Degraded", "False", "AsWanted")
        await api.client.delete(CONFIG)
        await site.until_operands()


async def test_requests_that_fail_or_meet_others_are_tried_again_and_conditions_follow_the_rollout(site: Site) -> None:
    api = site.api
    api.faults(verb="patch", resource="daemonsets", kind="internal-error", times=2)
    api.faults(verb="patch", resource="serviceaccounts", kind="conflict", times=2)
    api.faults(verb="patch", resource="configs", subresource="status", kind="conflict", times=1)
    async with site.operator() as context:
        config = await site.config(numaPlacementExporter={"service": {"enabled": True}})
        await site.until_operands(*EXPORTER)
        await site.until_condition(CONFIG, "Available", "False", "NotReady")
        path = site.path("DaemonSet", "kai-exporter")
        figures = {"desiredNumberScheduled": 2, "numberAvailable": 1, "updatedNumberScheduled": 2}
        await api.merge(f"{path}/status", {"status": {"observedGeneration": 1, **figures}})
        await site.until(
            lambda: site.condition(CONFIG, "Progressing"), lambda one: "1 of 2 nodes" in one.get("message", "")
        )
        await api.merge(f"{path}/status", {"status": {"numberAvailable": 2}})
        message = await site.until_condition(CONFIG, "Available", "True", "Available")
        assert message == "DaemonSet kai-exporter: 2 of 2 nodes; numaPlacementExporter.service.enabled is true"
        progressing = await site.condition(CONFIG, "Progressing")
        assert (progressing["status"], progressing["observedGeneration"]) == ("False", config["metadata"]["generation"])
        assert context.health.ready
