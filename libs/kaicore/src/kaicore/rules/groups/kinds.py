"""The kinds of objects that group pods, each with its API group."""

KAI_POD_GROUP = "PodGroup.scheduling.run.ai"
SIGS_POD_GROUP = "PodGroup.scheduling.sigs.k8s.io"
X_POD_GROUP = "PodGroup.scheduling.x-k8s.io"
NATIVE_POD_GROUP = "PodGroup.scheduling.k8s.io"
VOLCANO_POD_GROUP = "PodGroup.scheduling.volcano.sh"
WORKLOAD = "Workload.scheduling.k8s.io"

JOB = "Job.batch"
VOLCANO_JOB = "Job.batch.volcano.sh"
JOBSET = "JobSet.jobset.x-k8s.io"
LEADER_WORKER_SET = "LeaderWorkerSet.leaderworkerset.x-k8s.io"
RAY_CLUSTER = "RayCluster.ray.io"
RAY_JOB = "RayJob.ray.io"
MPI_JOB = "MPIJob.kubeflow.org"
HYPER_JOB = "HyperJob.topology.volcano.sh"
TRAINING_HYPER_JOB = "HyperJob.training.volcano.sh"

#: What Kueue makes of pods that name a pod group. It is not read: the pods say all of it.
KUEUE_WORKLOAD = "Workload.kueue.x-k8s.io"

#: Kinds of which each object is a group, with or without pods, and may be told in its status how it fares.
POD_GROUPS = frozenset({KAI_POD_GROUP, SIGS_POD_GROUP, X_POD_GROUP, NATIVE_POD_GROUP, VOLCANO_POD_GROUP})

#: Jobs of the training operator, and of the MPI operator.
KUBEFLOW_JOBS = frozenset(
    {f"{kind}.kubeflow.org" for kind in ("JAXJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")} | {MPI_JOB}
)

#: Jobs of Jobs of Volcano, whichever of its API groups serves them.
HYPER_JOBS = frozenset({HYPER_JOB, TRAINING_HYPER_JOB})

#: Owners of pods, or of owners of pods, that are groups.
OWNER_KINDS = KUBEFLOW_JOBS | HYPER_JOBS | {JOB, JOBSET, LEADER_WORKER_SET, RAY_CLUSTER, RAY_JOB, VOLCANO_JOB}
