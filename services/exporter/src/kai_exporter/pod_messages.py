"""Cut an answer of podresources `List` into its pods' messages without decoding them.

A kubelet answers with all its pods whenever it is asked, and next to none of them has changed since. The bytes of a pod
that were seen before need not be decoded again. On the wire, a field that holds a message and one that holds bytes are
the same, so the answer is read as a message whose pods are bytes.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from kaicore.errors import InvalidObject
from kaicore.kube.podresources import ListPodResourcesResponse, PodResources


def _undecoded_list() -> Any:
    source = ListPodResourcesResponse.DESCRIPTOR.fields_by_name["pod_resources"]
    file = descriptor_pb2.FileDescriptorProto(name="kai_exporter/undecoded.proto", package="kai_exporter")
    message = file.message_type.add(name="UndecodedList")
    message.field.add(
        name="pods",
        number=source.number,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kai_exporter.UndecodedList"))


_UndecodedList = _undecoded_list()


def pod_messages(answer: bytes, *, subject: str) -> list[bytes]:
    """Return the encoded `PodResources` of an encoded `ListPodResourcesResponse`.

    Args:
        answer: what the kubelet answered.
        subject: the node, for the error.

    Raises:
        InvalidObject: the bytes are no such message.
    """
    try:
        return list(_UndecodedList.FromString(answer).pods)
    except DecodeError as error:
        raise InvalidObject(subject, "podresources List", answer[:40], f"cannot be decoded ({error})") from error


def decode_pod(message: bytes, *, subject: str) -> PodResources:
    """Decode one pod's message.

    Raises:
        InvalidObject: the bytes are no such message.
    """
    try:
        return PodResources.FromString(message)
    except DecodeError as error:
        raise InvalidObject(subject, "podresources List", message[:40], f"a pod cannot be decoded ({error})") from error
