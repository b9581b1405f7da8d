"""The pods of owners: rules over plain objects that create the pods that the owners' controllers would create."""

from kaicore.kube.workloads.expansion import Made, NodesFor, expand, is_owner
from kaicore.kube.workloads.objects import Object, derived_uid, group_of, suffix
from kaicore.kube.workloads.pods import successor

__all__ = ["Made", "NodesFor", "Object", "derived_uid", "expand", "group_of", "is_owner", "successor", "suffix"]
