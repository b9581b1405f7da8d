"""Fields that the real API server always writes out, and empty values that it keeps.

Its types are Go structs: a field without `omitempty`, and a struct by value, are on the wire even when they were not
set. Clients see the difference (`status: {}`, `lastProbeTime: null`), so this server writes the same.
"""

from typing import Any

_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
_NO_DISRUPTIONS = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}

#: Per type, the fields that are never left out, with what stands there when they were not set.
ZERO_VALUES: dict[str, dict[str, Any]] = {
    "CoreV1Event": {
        "involvedObject": {},
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    },
    "V1Binding": {"target": {}},
    "V1Container": {"resources": {}},
    "V1ContainerStateRunning": {"startedAt": None},
    "V1ContainerStateTerminated": {"exitCode": 0, "startedAt": None, "finishedAt": None},
    "V1ContainerStatus": {
        "state": {},
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "image": "",
        "imageID": "",
    },
    "V1ClusterRole": {"rules": None},
    "V1CronJob": {"spec": {}, "status": {}},
    "V1CustomResourceDefinition": {
        "status": {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": None}
    },
    "V1CustomResourceDefinitionNames": {"plural": "", "kind": ""},
    "V1CustomResourceDefinitionStatus": {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": None,
    },
    "V1DaemonSet": {
        "spec": {},
        "status": {
            "currentNumberScheduled": 0,
            "numberMisscheduled": 0,
            "desiredNumberScheduled": 0,
            "numberReady": 0,
        },
    },
    "V1Deployment": {"spec": {}, "status": {}},
    "V1DeploymentCondition": {"lastUpdateTime": None, "lastTransitionTime": None},
    "V1EphemeralContainer": {"resources": {}},
    "V1Job": {"spec": {}, "status": {}},
    "V1JobCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "V1Lease": {"spec": {}},
    "V1Namespace": {"spec": {}, "status": {}},
    "V1Node": {
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
        },
    },
    "V1NodeCondition": {"lastHeartbeatTime": None, "lastTransitionTime": None},
    "V1NodeDaemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    "V1NodeStatus": {
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
        "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
    },
    "V1NodeSystemInfo": dict.fromkeys(_NODE_INFO, ""),
    "V1PersistentVolume": {"spec": {}, "status": {}},
    "V1PersistentVolumeClaim": {"spec": {}, "status": {}},
    "V1PersistentVolumeClaimSpec": {"resources": {}},
    "V1Pod": {"spec": {}, "status": {}},
    "V1PodCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "V1PodDisruptionBudget": {"spec": {}, "status": dict(_NO_DISRUPTIONS)},
    "V1PodDisruptionBudgetStatus": dict(_NO_DISRUPTIONS),
    "V1PodTemplateSpec": {"metadata": {}, "spec": {"containers": None}},
    "V1PriorityClass": {"value": 0},
    "V1ReplicaSet": {"spec": {}, "status": {"replicas": 0}},
    "V1ReplicaSetStatus": {"replicas": 0},
    "V1ReplicationController": {"spec": {}, "status": {"replicas": 0}},
    "V1ResourceQuota": {"spec": {}, "status": {}},
    "V1Role": {"rules": None},
    "V1Scale": {"spec": {}, "status": {"replicas": 0}},
    "V1Service": {"spec": {}, "status": {"loadBalancer": {}}},
    "V1ServiceStatus": {"loadBalancer": {}},
    "V1StatefulSet": {"spec": {}, "status": {"replicas": 0}},
    "V1StatefulSetStatus": {"replicas": 0},
}

#: `Type.field` whose empty value means something else than its absence.
KEPT_EMPTY = frozenset(
    {
        "V1HostPathVolumeSource.type",
        "V1LeaseSpec.holderIdentity",
        "V1PersistentVolumeClaimSpec.storageClassName",
        "V1PodAffinityTerm.namespaces",
        "V1PolicyRule.resourceNames",
        "V1ValidationRule.rule",
    }
)

#: Booleans by value: false and absent are the same, and written as absent.
FALSE_IS_ABSENT = frozenset(
    {
        "V1Container.stdin",
        "V1Container.stdinOnce",
        "V1Container.tty",
        "V1DeploymentSpec.paused",
        "V1NodeSpec.unschedulable",
        "V1PodSpec.hostIPC",
        "V1PodSpec.hostNetwork",
        "V1PodSpec.hostPID",
        "V1PriorityClass.globalDefault",
        "V1VolumeMount.readOnly",
    }
)
