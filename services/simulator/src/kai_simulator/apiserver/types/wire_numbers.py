"""Field numbers of the types that Go programs send as protobuf although JSON would do.

`kubectl` writes through typed clients in its imperative commands (`create job`, `drain`, `auth can-i`, …), and those
know no other encoding for built-in types. The table holds what such commands send; a request with anything else is
refused with the advice to send JSON.
"""

#: Type to the names of its fields in the order of their numbers, from 1; `-` is a number that is not read here.
_IN_ORDER: dict[str, str] = {
    "AuthenticationV1TokenRequest": "metadata spec status",
    "V1BoundObjectReference": "kind apiVersion name uid",
    "V1ClusterRole": "metadata rules aggregationRule",
    "V1ClusterRoleBinding": "metadata subjects roleRef",
    "V1ConfigMap": "metadata data binaryData immutable",
    "V1Container": "name image command args workingDir ports env resources volumeMounts livenessProbe readinessProbe "
    "lifecycle terminationMessagePath imagePullPolicy securityContext stdin stdinOnce tty envFrom "
    "terminationMessagePolicy",
    "V1ContainerPort": "name hostPort containerPort protocol hostIP",
    "V1CronJob": "metadata spec status",
    "V1CronJobSpec": "schedule startingDeadlineSeconds concurrencyPolicy suspend jobTemplate "
    "successfulJobsHistoryLimit failedJobsHistoryLimit timeZone",
    "V1CronJobStatus": "active - - lastScheduleTime lastSuccessfulTime",
    "V1DeleteOptions": "gracePeriodSeconds preconditions orphanDependents propagationPolicy dryRun",
    "V1Deployment": "metadata spec status",
    "V1DeploymentSpec": "replicas selector template strategy minReadySeconds revisionHistoryLimit paused - "
    "progressDeadlineSeconds",
    "V1DeploymentStatus": "observedGeneration replicas updatedReplicas availableReplicas unavailableReplicas "
    "conditions readyReplicas collisionCount",
    "V1DeploymentStrategy": "type rollingUpdate",
    "V1EnvVar": "name value valueFrom",
    "V1Eviction": "metadata deleteOptions",
    "V1Job": "metadata spec status",
    "V1JobSpec": "parallelism completions activeDeadlineSeconds selector manualSelector template backoffLimit "
    "ttlSecondsAfterFinished completionMode suspend",
    "V1JobStatus": "conditions startTime completionTime active succeeded failed completedIndexes",
    "V1JobTemplateSpec": "metadata spec",
    "V1LabelSelector": "matchLabels matchExpressions",
    "V1LabelSelectorRequirement": "key operator values",
    "V1LoadBalancerStatus": "ingress",
    "V1LocalObjectReference": "name",
    "V1Namespace": "metadata spec status",
    "V1NamespaceSpec": "finalizers",
    "V1NamespaceStatus": "phase conditions",
    "V1NonResourceAttributes": "path verb",
    "V1ObjectMeta": "name generateName namespace selfLink uid resourceVersion generation creationTimestamp "
    "deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences finalizers",
    "V1OwnerReference": "kind - name uid apiVersion controller blockOwnerDeletion",
    "V1PodDisruptionBudget": "metadata spec status",
    "V1PodDisruptionBudgetSpec": "minAvailable selector maxUnavailable unhealthyPodEvictionPolicy",
    "V1PodDisruptionBudgetStatus": "observedGeneration disruptedPods disruptionsAllowed currentHealthy desiredHealthy "
    "expectedPods conditions",
    "V1PodSpec": "volumes containers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy "
    "nodeSelector serviceAccountName serviceAccount nodeName hostNetwork hostPID hostIPC securityContext "
    "imagePullSecrets hostname subdomain affinity schedulerName initContainers automountServiceAccountToken "
    "tolerations hostAliases priorityClassName priority",
    "V1PodTemplateSpec": "metadata spec",
    "V1PolicyRule": "verbs apiGroups resources resourceNames nonResourceURLs",
    "V1Preconditions": "uid resourceVersion",
    "V1PriorityClass": "metadata value globalDefault description preemptionPolicy",
    "V1ResourceAttributes": "namespace verb group version resource subresource name",
    "V1ResourceRequirements": "limits requests",
    "V1Role": "metadata rules",
    "V1RoleBinding": "metadata subjects roleRef",
    "V1RoleRef": "apiGroup kind name",
    "RbacV1Subject": "kind apiGroup name namespace",
    "V1Secret": "metadata data type stringData immutable",
    "V1SelfSubjectAccessReview": "metadata spec status",
    "V1SelfSubjectAccessReviewSpec": "resourceAttributes nonResourceAttributes",
    "V1SelfSubjectReview": "metadata status",
    "V1SelfSubjectReviewStatus": "userInfo",
    "V1SelfSubjectRulesReview": "metadata spec status",
    "V1SelfSubjectRulesReviewSpec": "namespace",
    "V1Service": "metadata spec status",
    "V1ServiceAccount": "metadata secrets imagePullSecrets automountServiceAccountToken",
    "V1ServicePort": "name protocol port targetPort nodePort appProtocol",
    "V1ServiceSpec": "ports selector clusterIP type externalIPs - sessionAffinity loadBalancerIP "
    "loadBalancerSourceRanges externalName externalTrafficPolicy healthCheckNodePort publishNotReadyAddresses",
    "V1ServiceStatus": "loadBalancer conditions",
    "V1SubjectAccessReviewStatus": "allowed reason evaluationError denied",
    "V1SubjectRulesReviewStatus": "resourceRules nonResourceRules incomplete evaluationError",
    "V1TokenRequestSpec": "audiences - boundObjectRef expirationSeconds",
    "V1TokenRequestStatus": "token expirationTimestamp",
    "V1UserInfo": "username uid groups extra",
}

#: Type to field number to field name.
WIRE_NUMBERS: dict[str, dict[int, str]] = {
    name: {number: field for number, field in enumerate(fields.split(), start=1) if field != "-"}
    for name, fields in _IN_ORDER.items()
}

#: `Type.field` of values that are bytes on the wire and base64 in JSON.
BYTES = frozenset({"V1ConfigMap.binaryData", "V1Secret.data"})
