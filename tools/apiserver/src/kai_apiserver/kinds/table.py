"""The table of kinds and their rules, by collection."""

from kai_apiserver.crd import definitions
from kai_apiserver.kinds import jobs, pod_validation, pods, small_kinds
from kai_apiserver.kinds.rules import Rules

NO_RULES = Rules()

RULES: dict[str, Rules] = {
    "configmaps": Rules(validate_update=small_kinds.validate_config_update),
    "cronjobs.batch": Rules(default=small_kinds.default_cron_job, admit=small_kinds.reset_status),
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        default=definitions.default_definition,
        admit=definitions.admit_definition,
        validate=definitions.validate_definition,
    ),
    "daemonsets.apps": Rules(default=small_kinds.default_daemon_set),
    "deployments.apps": Rules(
        default=small_kinds.default_deployment,
        admit=small_kinds.reset_status,
        validate=small_kinds.validate_deployment,
        validate_update=small_kinds.validate_replicated_update,
    ),
    "jobs.batch": Rules(
        default=jobs.default_job,
        admit=jobs.admit_job,
        validate=jobs.validate_job,
        validate_update=jobs.validate_job_update,
    ),
    "namespaces": Rules(
        default=small_kinds.default_namespace,
        admit=small_kinds.admit_namespace,
        keep=small_kinds.keep_namespace_finalizers,
    ),
    "nodes": Rules(validate=small_kinds.validate_node, validate_status=small_kinds.validate_node_status),
    "persistentvolumeclaims": Rules(default=small_kinds.default_claim, admit=small_kinds.admit_claim),
    "persistentvolumes": Rules(default=small_kinds.default_volume, admit=small_kinds.admit_volume),
    "poddisruptionbudgets.policy": Rules(
        admit=small_kinds.admit_disruption_budget, validate=small_kinds.validate_disruption_budget
    ),
    "pods": Rules(
        default=pods.default_pod,
        admit=pods.admit_pod,
        validate=pod_validation.validate_pod,
        keep_status=pods.keep_qos_class,
        validate_update=pod_validation.validate_pod_update,
    ),
    "priorityclasses.scheduling.k8s.io": Rules(
        default=small_kinds.default_priority_class,
        validate=small_kinds.validate_priority_class,
        validate_update=small_kinds.validate_priority_class_update,
    ),
    "replicasets.apps": Rules(
        default=small_kinds.default_replica_set,
        admit=small_kinds.admit_replica_set,
        validate=small_kinds.validate_replicated,
        validate_update=small_kinds.validate_replicated_update,
    ),
    "replicationcontrollers": Rules(default=small_kinds.default_replica_set),
    "resourceclaims.resource.k8s.io": Rules(default=small_kinds.default_resource_claim),
    "resourceclaimtemplates.resource.k8s.io": Rules(default=small_kinds.default_resource_claim_template),
    "secrets": Rules(default=small_kinds.default_secret, validate_update=small_kinds.validate_config_update),
    "services": Rules(default=small_kinds.default_service, admit=small_kinds.admit_service),
    "statefulsets.apps": Rules(default=small_kinds.default_stateful_set),
    "storageclasses.storage.k8s.io": Rules(default=small_kinds.default_storage_class),
}
