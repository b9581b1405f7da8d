"""The exporter's decoder against the library of Protocol Buffers."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from kai_exporter import wire
from kaicore.kube.wire import podresources as messages

_INT64 = st.integers(-(2**63), 2**63 - 1)
#: As `st.text()`, which takes two seconds to find out what UTF-8 can encode.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_NODES = st.lists(_INT64.map(lambda one: messages.NUMANode(ID=one)), max_size=3).map(
    lambda nodes: messages.TopologyInfo(nodes=nodes)
)
_DEVICES = st.builds(
    messages.ContainerDevices, resource_name=_TEXT, device_ids=st.lists(_TEXT, max_size=3), topology=st.none() | _NODES
)
_MEMORY = st.builds(
    messages.ContainerMemory, memory_type=_TEXT, size=st.integers(0, 2**64 - 1), topology=st.none() | _NODES
)
_CPUS = st.lists(_INT64, max_size=5)
_CONTAINERS = st.builds(
    messages.ContainerResources,
    name=_TEXT,
    devices=st.lists(_DEVICES, max_size=3),
    cpu_ids=_CPUS,
    memory=st.lists(_MEMORY, max_size=3),
)
_PODS = st.builds(
    messages.PodResources,
    name=_TEXT,
    namespace=_TEXT,
    containers=st.lists(_CONTAINERS, max_size=3),
    cpu_ids=_CPUS,
    memory=st.lists(_MEMORY, max_size=2),
)


def devices_of(given: Any) -> list[wire.ContainerDevices]:
    return [
        wire.ContainerDevices(one.resource_name, list(one.device_ids), [node.ID for node in one.topology.nodes])
        for one in given
    ]


def memory_of(given: Any) -> list[wire.ContainerMemory]:
    return [wire.ContainerMemory(one.memory_type, one.size, [node.ID for node in one.topology.nodes]) for one in given]


def pod_of(given: messages.PodResources) -> wire.PodResources:
    containers = [
        wire.ContainerResources(one.name, devices_of(one.devices), list(one.cpu_ids), memory_of(one.memory))
        for one in given.containers
    ]
    return wire.PodResources(given.name, given.namespace, containers, list(given.cpu_ids), memory_of(given.memory))


@given(st.lists(_PODS, max_size=3))
def test_pods_are_decoded_as_the_library_decodes_them(pods: list[messages.PodResources]) -> None:
    answer = messages.ListPodResourcesResponse(pod_resources=pods).SerializeToString()
    assert [wire.decode_pod(message) for message in wire.messages_of(answer)] == [pod_of(one) for one in pods]


@given(
    st.builds(
        messages.AllocatableResourcesResponse, devices=st.lists(_DEVICES), cpu_ids=_CPUS, memory=st.lists(_MEMORY)
    )
)
def test_what_can_be_given_is_decoded_as_the_library_decodes_it(
    allocatable: messages.AllocatableResourcesResponse,
) -> None:
    assert wire.decode_allocatable(allocatable.SerializeToString()) == wire.AllocatableResources(
        devices_of(allocatable.devices), list(allocatable.cpu_ids), memory_of(allocatable.memory)
    )


@given(_PODS, st.data())
def test_bytes_that_are_spoiled_are_refused_or_read_as_the_library_reads_them(
    pod: messages.PodResources, data: Any
) -> None:
    message = bytearray(pod.SerializeToString())
    cut = data.draw(st.integers(0, len(message)))
    spoiled = bytes(message[:cut]) + data.draw(st.binary(max_size=6)) + bytes(message[cut + 2 :])
    try:
        read = wire.decode_pod(spoiled)
    except wire.WireError:
        return
    try:
        right = messages.PodResources.FromString(spoiled)
    except DecodeError:
        return  # The library knows more that is wrong, such as texts of fields that are passed over here.
    assert read == pod_of(right)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\x0a\x05abc", "field 1 ends after the message"),
        (b"\x0a\x02\xff\xff", "a text that is not UTF-8"),
        (b"\x08\x01", "a field that is not of type bytes"),
        (b"\x0b", "field 1 is of wire type 3"),
        (b"\xff" * 11, "a number that does not end"),
        (b"\x02\x00", "field 0"),
    ],
)
def test_what_is_no_message_is_told(message: bytes, problem: str) -> None:
    with pytest.raises(wire.WireError, match=problem):
        wire.decode_pod(message)
