"""HyperJobs on the wire: Jobs of Volcano that belong together.

As in `kaicore.kube.objects`, only the fields that are read.
"""

import msgspec

from kaicore.kube.objects import KubernetesObject
from kaicore.kube.owner_objects import VolcanoJobSpec, VolcanoNetworkTopologies
from kaicore.kube.wire import Wire


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
