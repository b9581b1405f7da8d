"""Deletion: grace, finalizers, preconditions, collections."""

from tests.tools.apiserver.client import CONFIG_MAPS, PODS, Client, binding, config_map, pod


async def running(client: Client, name: str) -> None:
    await client.post(PODS, pod(name))
    await client.post(f"{PODS}/{name}/binding", binding(name, "n1"))
    await client.merge(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})


async def test_a_running_pod_gets_its_own_grace_period(client: Client) -> None:
    await client.post(PODS, pod("p", terminationGracePeriodSeconds=7))
    await client.post(f"{PODS}/p/binding", binding("p", "n1"))
    assert (await client.delete(f"{PODS}/p")).json["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_a_grace_period_is_shortened_but_never_lengthened(client: Client) -> None:
    await running(client, "p")
    first = (await client.delete(f"{PODS}/p?gracePeriodSeconds=20")).json["metadata"]
    longer = (await client.delete(f"{PODS}/p?gracePeriodSeconds=60")).json["metadata"]
    assert longer["resourceVersion"] == first["resourceVersion"]
    shorter = (await client.delete(f"{PODS}/p?gracePeriodSeconds=5")).json["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    assert (await client.get(f"{PODS}/p")).status == 200
    await client.delete(f"{PODS}/p?gracePeriodSeconds=0")
    assert (await client.get(f"{PODS}/p")).status == 404


async def test_a_finished_pod_goes_at_once(client: Client) -> None:
    await running(client, "p")
    await client.merge(f"{PODS}/p/status", {"status": {"phase": "Failed"}})
    await client.delete(f"{PODS}/p?gracePeriodSeconds=60")
    assert (await client.get(f"{PODS}/p")).status == 404


async def test_a_pod_with_a_finalizer_outlives_its_grace_period(client: Client) -> None:
    await running(client, "p")
    await client.merge(f"{PODS}/p", {"metadata": {"finalizers": ["example.com/wait"]}})
    await client.delete(f"{PODS}/p?gracePeriodSeconds=0")
    assert (await client.get(f"{PODS}/p")).status == 200
    refused = await client.merge(f"{PODS}/p", {"metadata": {"finalizers": ["example.com/wait", "example.com/new"]}})
    assert refused.status == 422
    await client.merge(f"{PODS}/p", {"metadata": {"finalizers": []}})
    assert (await client.get(f"{PODS}/p")).status == 404


async def test_a_terminating_pod_waits_for_the_kubelet_after_its_last_finalizer(client: Client) -> None:
    await running(client, "p")
    await client.merge(f"{PODS}/p", {"metadata": {"finalizers": ["example.com/wait"]}})
    await client.delete(f"{PODS}/p?gracePeriodSeconds=30")
    await client.merge(f"{PODS}/p", {"metadata": {"finalizers": []}})
    assert (await client.get(f"{PODS}/p")).status == 200
    await client.delete(f"{PODS}/p?gracePeriodSeconds=0")
    assert (await client.get(f"{PODS}/p")).status == 404


async def test_preconditions_hold_or_nothing_happens(client: Client) -> None:
    created = (await client.post(CONFIG_MAPS, config_map("a"))).json["metadata"]
    stale = {"preconditions": {"resourceVersion": "1"}}
    assert (await client.delete(f"{CONFIG_MAPS}/a", stale)).status == 409
    exact = {"preconditions": {"uid": created["uid"], "resourceVersion": created["resourceVersion"]}}
    answer = await client.delete(f"{CONFIG_MAPS}/a", exact)
    assert answer.json["status"] == "Success"
    assert answer.json["details"] == {"name": "a", "kind": "configmaps", "uid": created["uid"]}


async def test_deleting_a_selection_deletes_what_it_selects(client: Client) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        await client.post(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"app": app}}})
    answer = await client.delete(f"{CONFIG_MAPS}?labelSelector=app%3Dx")
    assert (answer.json["kind"], answer.items) == ("ConfigMapList", ["a", "c"])
    assert (await client.get(CONFIG_MAPS)).items == ["b"]


async def test_a_job_deleted_without_a_policy_says_that_its_pods_stay(client: Client) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {**pod()["spec"], "restartPolicy": "Never"}}
    await client.post(jobs, {"metadata": {"name": "j"}, "spec": {"template": template}})
    answer = await client.delete(f"{jobs}/j")
    assert "child pods are preserved by default" in answer.headers["Warning"]
    assert answer.json["metadata"]["finalizers"] == ["orphan"]


async def test_a_namespace_on_its_way_out_takes_nothing_new(client: Client) -> None:
    await client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    gone = await client.delete("/api/v1/namespaces/team")
    assert gone.json["status"]["phase"] == "Terminating"
    refused = await client.post("/api/v1/namespaces/team/configmaps", config_map("a"))
    assert (refused.status, refused.json["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    assert (await client.delete("/api/v1/namespaces/team")).status == 409
    await client.put("/api/v1/namespaces/team/finalize", {"metadata": {"name": "team"}, "spec": {}})
    assert (await client.get("/api/v1/namespaces/team")).status == 404
