"""The pods of owners: rules over plain objects that create the pods that the owners' controllers would create."""

from kaicore.kube.workloads.expansion import Made, NodesFor, expand, is_owner
from kaicore.rules.objects.made import successor
from kaicore.rules.objects.mappings import Object, derived_uid, group_of, suffix

__all__ = ["Made", "NodesFor", "Object", "derived_uid", "expand", "group_of", "is_owner", "successor", "suffix"]
