"""The wire format of the kubelet's podresources API, v1. An exporter asks a kubelet through it for each container's
resources.

The messages are generated from `podresources.proto`; its head contains the command for it. The same API is spoken by
every kubelet and by the simulated ones, on a unix socket named `kubelet.sock`.
"""

from typing import Final

from kaicore.kube.wire.podresources.podresources_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    GetPodResourcesRequest,
    GetPodResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    NUMANode,
    PodResources,
    TopologyInfo,
)

#: Paths of the three calls, all unary.
LIST: Final = "/v1.PodResourcesLister/List"
GET_ALLOCATABLE_RESOURCES: Final = "/v1.PodResourcesLister/GetAllocatableResources"
GET: Final = "/v1.PodResourcesLister/Get"

__all__ = [
    "GET",
    "GET_ALLOCATABLE_RESOURCES",
    "LIST",
    "AllocatableResourcesRequest",
    "AllocatableResourcesResponse",
    "ContainerDevices",
    "ContainerMemory",
    "ContainerResources",
    "GetPodResourcesRequest",
    "GetPodResourcesResponse",
    "ListPodResourcesRequest",
    "ListPodResourcesResponse",
    "NUMANode",
    "PodResources",
    "TopologyInfo",
]
