"""The simulated cluster's resource claims, as kube-controller-manager makes them and lets them go."""

import asyncio
from pathlib import Path

from kai_apiserver.controllers.claims import FINALIZER
from kai_apiserver.resources import demonstration
from kaicore.yaml_text import load_yaml_all

from tests.given.servers.kube import DEFINITIONS, PODS, Json, simulated

GROUP = "/apis/resource.k8s.io/v1/namespaces/default"
CLAIMS, TEMPLATES = f"{GROUP}/resourceclaims", f"{GROUP}/resourceclaimtemplates"
POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
SPEC: Json = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}


async def test_claim_of_a_template_is_named_in_its_pod_and_goes_with_it() -> None:
    async with simulated(controllers=True) as api:
        uses = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
        pod = await api.pod("a", resourceClaims=uses)
        await api.post(
            TEMPLATES, {"metadata": {"name": "one"}, "spec": {"metadata": {"labels": {"x": "y"}}, "spec": SPEC}}
        )
        named = await api.until(f"{PODS}/a", lambda seen: seen["status"].get("resourceClaimStatuses"))
        (status,) = named["status"]["resourceClaimStatuses"]
        path = f"{CLAIMS}/{status['resourceClaimName']}"
        claim = await api.get(path)
        assert claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        assert (claim["metadata"]["labels"], claim["spec"]["devices"]["requests"][0]["exactly"]["count"]) == (
            {"x": "y"},
            1,
        )
        await api.merge(path, {"metadata": {"finalizers": [FINALIZER]}})
        result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
        consumer = {"resource": "pods", "name": "a", "uid": pod["metadata"]["uid"]}
        allocated = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
        await api.merge(f"{path}/status", {"status": allocated})
        await api.delete_pod("a")
        async with asyncio.timeout(60):
            while await api.items(CLAIMS):
                pass


async def test_claim_of_its_own_is_let_go_by_pods_that_end_and_stays() -> None:
    async with simulated(controllers=True) as api:
        await api.post(CLAIMS, {"metadata": {"name": "shared", "finalizers": [FINALIZER]}, "spec": SPEC})
        pods = [await api.pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]) for name in "ab"]
        consumers = [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods
        ]
        allocated = {"allocation": {"devices": {"results": []}}, "reservedFor": consumers}
        await api.merge(f"{CLAIMS}/shared/status", {"status": allocated})
        await api.pod_status("a", phase="Succeeded")
        one = await api.until(f"{CLAIMS}/shared", lambda seen: len(seen["status"]["reservedFor"]) == 1)
        assert one["status"]["allocation"]
        await api.delete_pod("b")
        freed = await api.until(f"{CLAIMS}/shared", lambda seen: not seen["status"].get("allocation"))
        assert not freed["status"].get("reservedFor")


async def test_pods_with_a_device_that_a_rule_taints_are_evicted_unless_their_claim_tolerates_it() -> None:
    async with simulated(controllers=True) as api:
        for name, tolerations in (("a", []), ("b", [{"operator": "Exists", "effect": "NoExecute"}])):
            await api.post(CLAIMS, {"metadata": {"name": name}, "spec": SPEC})
            pod = await api.pod(name, nodeName="n1", resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
            result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": name}
            consumer = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
            allocation = {"devices": {"results": [{**result, "tolerations": tolerations}]}}
            await api.merge(
                f"{CLAIMS}/{name}/status", {"status": {"allocation": allocation, "reservedFor": [consumer]}}
            )
        spec = {"deviceSelector": {"pool": "n1"}, "taint": {"key": "example.com/broken", "effect": "NoExecute"}}
        await api.post("/apis/resource.k8s.io/v1/devicetaintrules", {"metadata": {"name": "broken"}, "spec": spec})
        gone = await api.until(f"{PODS}/a", lambda seen: seen["metadata"].get("deletionTimestamp"))
        assert "DeletionByDeviceTaintManager" in {one.get("reason") for one in gone["status"]["conditions"]}
        assert not (await api.get(f"{PODS}/b"))["metadata"].get("deletionTimestamp")


async def test_claim_of_a_pod_groups_template_is_made_once_and_named_in_the_group_and_its_pods() -> None:
    native = (Path(demonstration.__file__).parent / "native.yaml").read_text()
    async with simulated(controllers=True) as api:
        for definition in load_yaml_all(native):
            await api.post(DEFINITIONS, definition)
        uses = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
        for name in "ab":
            await api.pod(name, resourceClaims=uses, schedulingGroup={"podGroupName": "train"})
        await api.pod("own", resourceClaims=[{**uses[0], "name": "mine"}], schedulingGroup={"podGroupName": "train"})
        await api.post(TEMPLATES, {"metadata": {"name": "one"}, "spec": {"spec": SPEC}})
        assert not await api.items(CLAIMS)
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": uses}
        group = await api.post(POD_GROUPS, {"metadata": {"name": "train"}, "spec": spec})
        named = [
            await api.until(path, lambda seen: seen.get("status", {}).get("resourceClaimStatuses"))
            for path in (f"{POD_GROUPS}/train", f"{PODS}/a", f"{PODS}/b", f"{PODS}/own")
        ]
        of_group, *of_pods, own = [one["status"]["resourceClaimStatuses"] for one in named]
        assert of_pods == [of_group, of_group]
        assert own[0]["resourceClaimName"] != of_group[0]["resourceClaimName"]
        claims = {one["metadata"]["name"]: one for one in await api.items(CLAIMS)}
        assert len(claims) == 2
        (owner,) = claims[of_group[0]["resourceClaimName"]]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("PodGroup", group["metadata"]["uid"])
        await api.client.delete(f"{POD_GROUPS}/train", {})
        async with asyncio.timeout(60):
            while len(await api.items(CLAIMS)) > 1:
                pass
