"""Owners of pods on the wire, reduced to the fields that define how many of their pods must run at once.

Objects that group pods, on the wire: PodGroups of four dialects, and the native Workload.

As in `kaicore.kube.wire.objects`, only the fields that are read.

HyperJobs on the wire: Jobs of Volcano that belong together.

As in `kaicore.kube.wire.objects`, only the fields that are read.
"""

from typing import Any

import msgspec

from kaicore.kube.wire.objects import KubernetesObject, LabelSelector, Wire


class TemplateMeta(Wire):
    """The metadata of a template."""

    annotations: dict[str, str] | None = None


class PodTemplate(Wire):
    """What pods are made of; how the pods belong together is said in its annotations."""

    metadata: TemplateMeta | None = None


def annotations_of(template: PodTemplate | None) -> dict[str, str]:
    """Return the annotations of the pods that are made of a template; none where there is no template."""
    metadata = template.metadata if template is not None else None
    return (metadata.annotations if metadata is not None else None) or {}


class PodConditionPattern(Wire):
    """A condition of a failed pod."""

    type: str = ""
    status: str | None = None


class PodFailureRule(Wire):
    """What a failure is to a Job, where all that is said of the pod holds."""

    action: str = ""
    on_pod_conditions: list[PodConditionPattern] | None = None


class PodFailurePolicy(Wire):
    """Rules of which the first that matches counts."""

    rules: list[PodFailureRule] | None = None


class JobSpec(Wire):
    """How many pods a Job runs, and how many of them may fail."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    template: PodTemplate | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    suspend: bool | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    active_deadline_seconds: int | None = None


class PodCounts(Wire):
    """How many pods have come to an end, those included that are deleted by now."""

    succeeded: int | None = None
    failed: int | None = None


class JobObject(KubernetesObject):
    """A `batch/v1` Job."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: PodCounts = msgspec.field(default_factory=PodCounts)


class VolcanoNetworkTopology(Wire):
    """Up to which tier of the network pods may be apart."""

    mode: str | None = None
    highest_tier_allowed: int | None = None
    highest_tier_name: str | None = None


#: An object, or a list of one, as the examples of Volcano's design have it.
VolcanoNetworkTopologies = VolcanoNetworkTopology | list[VolcanoNetworkTopology] | None


class VolcanoPartitionPolicy(Wire):
    """Parts of a task, each with a place of its own in the network."""

    total_partitions: int | None = None
    partition_size: int | None = None
    min_partitions: int | None = None
    network_topology: VolcanoNetworkTopology | None = None


class VolcanoLifecyclePolicy(Wire):
    """What is done about a job when something happens to one of its pods."""

    action: str | None = None
    event: str | None = None
    events: list[str] | None = None


class VolcanoPodSpec(Wire):
    """Who schedules the pods of a task; empty where the Job says it."""

    scheduler_name: str | None = None


class VolcanoPodTemplate(Wire):
    """What the pods of a task are made of."""

    spec: VolcanoPodSpec | None = None


class VolcanoTask(Wire):
    """Pods of a Volcano Job that are alike."""

    name: str = ""
    template: VolcanoPodTemplate | None = None
    replicas: int | None = None
    min_available: int | None = None
    policies: list[VolcanoLifecyclePolicy] | None = None
    partition_policy: VolcanoPartitionPolicy | None = None


class VolcanoJobSpec(Wire):
    """The tasks of a Volcano Job."""

    min_available: int | None = None
    tasks: list[VolcanoTask] | None = None
    policies: list[VolcanoLifecyclePolicy] | None = None
    queue: str | None = None
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    network_topology: VolcanoNetworkTopologies = None


class VolcanoTaskState(Wire):
    """How many pods of a task are in which phase."""

    phase: dict[str, int] | None = None


class VolcanoJobStatus(Wire):
    """What became of the pods of a Volcano Job."""

    task_status_count: dict[str, VolcanoTaskState] | None = None


class VolcanoJobObject(KubernetesObject):
    """A `batch.volcano.sh/v1alpha1` Job."""

    spec: VolcanoJobSpec = msgspec.field(default_factory=VolcanoJobSpec)
    status: VolcanoJobStatus = msgspec.field(default_factory=VolcanoJobStatus)


class JobTemplate(Wire):
    """A template of Jobs."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)


class DependsOn(Wire):
    """What must be before."""

    name: str = ""


class ReplicatedJob(Wire):
    """Jobs that are alike."""

    name: str = ""
    replicas: int | None = None
    template: JobTemplate = msgspec.field(default_factory=JobTemplate)
    depends_on: list[DependsOn] | None = None


class StartupPolicy(Wire):
    """Whether replicated jobs start one after the other."""

    startup_policy_order: str | None = None


class JobSetSpec(Wire):
    """The jobs of a JobSet."""

    replicated_jobs: list[ReplicatedJob] | None = None
    startup_policy: StartupPolicy | None = None
    suspend: bool | None = None


class ReplicatedJobStatus(Wire):
    """How many of the Jobs of a replicated job have succeeded."""

    name: str = ""
    succeeded: int | None = None


class JobSetStatus(Wire):
    """What became of a JobSet."""

    replicated_jobs_status: list[ReplicatedJobStatus] | None = None


class JobSetObject(KubernetesObject):
    """A `jobset.x-k8s.io/v1alpha2` JobSet."""

    spec: JobSetSpec = msgspec.field(default_factory=JobSetSpec)
    status: JobSetStatus = msgspec.field(default_factory=JobSetStatus)


class ReplicaSpec(Wire):
    """Pods of one type."""

    replicas: int | None = None
    template: PodTemplate | None = None


class KubeflowSchedulingPolicy(Wire):
    """How the job wants to be scheduled."""

    min_available: int | None = None
    queue: str | None = None
    priority_class: str | None = None


class KubeflowRunPolicy(Wire):
    """How the job is run."""

    scheduling_policy: KubeflowSchedulingPolicy | None = None
    suspend: bool | None = None
    active_deadline_seconds: int | None = None


class ElasticPolicy(Wire):
    """How a PyTorchJob may grow."""

    min_replicas: int | None = None


ReplicaSpecs = dict[str, ReplicaSpec]


class KubeflowJobSpec(Wire):
    """What is wanted of a job of the training operator; each kind has its own name for its replicas."""

    jax_replica_specs: ReplicaSpecs | None = None
    mpi_replica_specs: ReplicaSpecs | None = None
    paddle_replica_specs: ReplicaSpecs | None = None
    pytorch_replica_specs: ReplicaSpecs | None = None
    tf_replica_specs: ReplicaSpecs | None = None
    xgb_replica_specs: ReplicaSpecs | None = None
    run_policy: KubeflowRunPolicy | None = None
    elastic_policy: ElasticPolicy | None = None
    launcher_creation_policy: str | None = None
    run_launcher_as_worker: bool | None = None

    @property
    def replica_specs(self) -> tuple[str, ReplicaSpecs]:
        """The field in which the replicas are, and what it says."""
        for name in ("pytorch", "tf", "mpi", "xgb", "jax", "paddle"):
            specs: ReplicaSpecs | None = getattr(self, f"{name}_replica_specs")
            if specs is not None:
                return f"spec.{name}ReplicaSpecs", specs
        return "spec", {}


class KubeflowStatus(Wire):
    """What became of a job of the training operator, by replica type."""

    replica_statuses: dict[str, PodCounts] | None = None


class KubeflowJob(KubernetesObject):
    """A `kubeflow.org` PyTorchJob, TFJob, MPIJob, XGBoostJob, PaddleJob or JAXJob."""

    spec: KubeflowJobSpec = msgspec.field(default_factory=KubeflowJobSpec)
    status: KubeflowStatus = msgspec.field(default_factory=KubeflowStatus)


class RayWorkerGroup(Wire):
    """Workers that are alike."""

    group_name: str = ""
    replicas: int | None = None
    min_replicas: int | None = None
    num_of_hosts: int | None = None
    suspend: bool | None = None
    template: PodTemplate | None = None


class RayHeadGroup(Wire):
    """The head."""

    template: PodTemplate | None = None


class RayClusterSpec(Wire):
    """The pods of a RayCluster."""

    head_group_spec: RayHeadGroup | None = None
    worker_group_specs: list[RayWorkerGroup] | None = None
    enable_in_tree_autoscaling: bool | None = None
    suspend: bool | None = None


class RayClusterObject(KubernetesObject):
    """A `ray.io/v1` RayCluster."""

    spec: RayClusterSpec = msgspec.field(default_factory=RayClusterSpec)


class RayJobSpec(Wire):
    """A RayJob brings its cluster, unless it uses one that is there."""

    ray_cluster_spec: RayClusterSpec | None = None
    suspend: bool | None = None
    submitter_pod_template: PodTemplate | None = None
    active_deadline_seconds: int | None = None


class RayJobObject(KubernetesObject):
    """A `ray.io/v1` RayJob."""

    spec: RayJobSpec = msgspec.field(default_factory=RayJobSpec)


class SubGroupPolicy(Wire):
    """The sub-groups of a leader and its workers, and whether the leader is in the first of them."""

    sub_group_policy_type: str | None = None
    sub_group_size: int | None = None


class LeaderWorkerTemplate(Wire):
    """A leader and its workers."""

    size: int | None = None
    sub_group_policy: SubGroupPolicy | None = None
    leader_template: PodTemplate | None = None
    worker_template: PodTemplate | None = None


class LeaderWorkerSetSpec(Wire):
    """The groups of a LeaderWorkerSet."""

    leader_worker_template: LeaderWorkerTemplate = msgspec.field(default_factory=LeaderWorkerTemplate)
    startup_policy: str | None = None


class LeaderWorkerSetObject(KubernetesObject):
    """A `leaderworkerset.x-k8s.io/v1` LeaderWorkerSet."""

    spec: LeaderWorkerSetSpec = msgspec.field(default_factory=LeaderWorkerSetSpec)


class KaiTopologyConstraint(Wire):
    """Where in a topology pods are to be."""

    topology: str | None = None
    required_topology_level: str | None = None
    preferred_topology_level: str | None = None


class KaiSubGroup(Wire):
    """A node of a PodGroup's tree."""

    name: str = ""
    parent: str | None = None
    min_member: int | None = None
    min_sub_group: int | None = None
    topology_constraint: KaiTopologyConstraint | None = None


class KaiPodGroupSpec(Wire):
    """What is wanted of a `scheduling.run.ai` PodGroup."""

    min_member: int | None = None
    min_sub_group: int | None = None
    sub_groups: list[KaiSubGroup] | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    preemptibility: str | None = None
    topology_constraint: KaiTopologyConstraint | None = None
    mark_unschedulable: bool | None = None
    scheduling_backoff: int | None = None
    preemption_delay: str | None = None
    staleness_grace_period: str | None = None


class KaiPodGroup(KubernetesObject):
    """A `scheduling.run.ai/v2alpha2` PodGroup."""

    spec: KaiPodGroupSpec = msgspec.field(default_factory=KaiPodGroupSpec)


class SigsPodGroupSpec(Wire):
    """What is wanted of a PodGroup of the scheduler-plugins, Koordinator's among them."""

    min_member: int | None = None
    schedule_timeout_seconds: int | None = None


class SigsPodGroup(KubernetesObject):
    """A `scheduling.sigs.k8s.io/v1alpha1` PodGroup, or one of `scheduling.x-k8s.io`."""

    spec: SigsPodGroupSpec = msgspec.field(default_factory=SigsPodGroupSpec)


class VolcanoSubGroupPolicy(Wire):
    """Sub-groups that arise from labels."""

    name: str = ""
    sub_group_size: int | None = None
    min_sub_groups: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    network_topology: VolcanoNetworkTopology | None = None


class VolcanoPodGroupSpec(Wire):
    """What is wanted of a `scheduling.volcano.sh` PodGroup."""

    min_member: int | None = None
    min_task_member: dict[str, int] | None = None
    queue: str | None = None
    priority_class_name: str | None = None
    sub_group_policy: list[VolcanoSubGroupPolicy] | None = None
    network_topology: VolcanoNetworkTopology | None = None


class VolcanoPodGroup(KubernetesObject):
    """A `scheduling.volcano.sh/v1beta1` PodGroup."""

    spec: VolcanoPodGroupSpec = msgspec.field(default_factory=VolcanoPodGroupSpec)


class NativeGang(Wire):
    """All or nothing."""

    min_count: int | None = None


class NativePolicy(Wire):
    """How pods of a group are scheduled: `basic` is one by one."""

    gang: NativeGang | None = None


class NativeTopology(Wire):
    """Pods must share a value of a node label."""

    key: str = ""


class NativeConstraints(Wire):
    """Where pods of a group are to be."""

    topology: list[NativeTopology] | None = None


class NativePodGroupSpec(Wire):
    """What is wanted of a native PodGroup."""

    scheduling_policy: NativePolicy = msgspec.field(default_factory=NativePolicy)
    scheduling_constraints: NativeConstraints | None = None
    disruption_mode: Any = None
    priority_class_name: str | None = None
    priority: int | None = None


class NativePodGroup(KubernetesObject):
    """A `scheduling.k8s.io` PodGroup: v1alpha2 (Kubernetes 1.36), v1alpha3 and v1beta1 (1.37).

    What is read of it is called the same in all of them, but for how pods are disrupted.
    """

    spec: NativePodGroupSpec = msgspec.field(default_factory=NativePodGroupSpec)


class WorkloadPodGroup(Wire):
    """A kind of groups of a Workload."""

    name: str = ""
    policy: NativePolicy = msgspec.field(default_factory=NativePolicy)


class NativePodGroupTemplate(NativePodGroupSpec):
    """What PodGroups of a Workload are made of."""

    name: str = ""


class WorkloadSpec(Wire):
    """What is wanted of a Workload: groups of pods in Kubernetes 1.35, templates of PodGroups from 1.36 on."""

    pod_groups: list[WorkloadPodGroup] | None = None
    pod_group_templates: list[NativePodGroupTemplate] | None = None


class WorkloadObject(KubernetesObject):
    """A `scheduling.k8s.io` Workload: v1alpha1 (Kubernetes 1.35), v1alpha2 (1.36), v1alpha3 and v1beta1 (1.37)."""

    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)


class HyperReplicatedJob(Wire):
    """Jobs that are alike; `templateSpec` is what `training.volcano.sh` calls their template."""

    name: str = ""
    replicas: int | None = None
    template: VolcanoJobSpec | None = None
    template_spec: VolcanoJobSpec | None = None


class HyperJobSpec(Wire):
    """The Jobs of a HyperJob."""

    min_available: int | None = None
    replicated_jobs: list[HyperReplicatedJob] | None = None
    network_topology: VolcanoNetworkTopologies = None


class HyperJobObject(KubernetesObject):
    """A HyperJob of `topology.volcano.sh` or `training.volcano.sh`."""

    spec: HyperJobSpec = msgspec.field(default_factory=HyperJobSpec)
