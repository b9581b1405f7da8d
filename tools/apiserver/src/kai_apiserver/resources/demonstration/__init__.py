"""Initial objects of a cluster for demonstrations, so that the first manifests of a new user run."""

from importlib import resources

from kaicore.kube.kinds.shipped_crds import shipped_crds
from kaicore.yaml_text import load_yaml_all

from kai_apiserver.kinds.pods import DEFAULT_TOLERATIONS
from kai_apiserver.objects import Object
from kai_apiserver.resources.crd import DEFINITIONS
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.writing import create, replace

#: The namespace with pods that tolerate the taint of demonstration fleets on nodes with GPUs.
PLAYGROUND = "playground"
#: The definition that is nobody else's; others' may have been replaced by their users.
_OWN = "reservations.kai.scheduler"
_GPU_TOLERATION = '[{"key": "nvidia.com/gpu", "operator": "Exists"}]'


def demonstrate(backend: Backend) -> None:
    """Create the CRDs of PodGroups, queues and batch work and the playground where missing; renew our own CRD."""
    for text in [*shipped_crds().values(), *_texts()]:
        for definition in load_yaml_all(text):
            _create_missing(backend, ("apiextensions.k8s.io", DEFINITIONS.partition(".")[0]), definition)
    annotations = {DEFAULT_TOLERATIONS: _GPU_TOLERATION}
    _create_missing(backend, ("", "namespaces"), {"metadata": {"name": PLAYGROUND, "annotations": annotations}})


def _texts() -> list[str]:
    here = resources.files(__package__)
    return [file.read_text("utf-8") for file in here.iterdir() if file.name.endswith(".yaml")]


def _create_missing(backend: Backend, group_and_plural: tuple[str, str], obj: Object) -> None:
    group, plural = group_and_plural
    resource = backend.registry.find(group, "v1", plural=plural)
    name = obj["metadata"]["name"]
    stored = backend.collection(resource).get(name)
    if stored is None:
        create(backend, Target(resource), given=obj, operation=Operation())
    elif name == _OWN:
        # The server would drop fields that are newer than the definition that it has kept.
        obj["metadata"]["resourceVersion"] = str(stored.rv)
        replace(backend, Target(resource, name=name), given=obj, operation=Operation())
