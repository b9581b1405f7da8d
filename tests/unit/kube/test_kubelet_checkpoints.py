"""A kubelet's state files, read and written: files of real kubelets, and what makes no sense."""

import msgspec
import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.wire.kubelet_checkpoints import (
    CpuManagerState,
    DeviceEntry,
    DeviceManagerState,
    MemoryEntry,
    MemoryManagerState,
    MemoryTable,
    NumaNodeState,
    decode_cpu_state,
    decode_device_state,
    decode_memory_state,
    encode_cpu_state,
    encode_device_state,
    encode_memory_state,
)

#: As kubelets wrote them, found in public write-ups and in the kubelet's own tests.
REAL_CPU_FILES = [
    b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
    b'{"policyName":"static","defaultCpuSet":"0-27","checksum":273146150}',
    b'{"policyName":"static","defaultCpuSet":"0,13","entries":{"55784671-0e4e-49e2-b4d6-c0377ca14c81":{"app":"1-12"},'
    b'"6c5f3038-adfc-485d-9943-3fd5e825300d":{"app":"14-27"}},"checksum":3558029577}',
    b'{"policyName":"static","defaultCpuSet":"1-2","entries":{"pod1":{"container1":"5-6","container2":"3-4"}},'
    b'"podEntries":{"pod2":{"cpuSet":"7-9"}},"checksum":766259872}',
]
MACHINE = (
    b'{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,'
    b'"reserved":512,"free":1024}},"cells":[]}}'
)
ENTRIES = b'{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}}'
REAL_MEMORY_FILES = [
    b'{"policyName":"static","machineState":%b,"entries":%b,"checksum":4215593881}' % (MACHINE, ENTRIES),
    b'{"policyName":"static","machineState":%b,"entries":%b,"podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],'
    b'"type":"memory","size":512}]}},"checksum":1278640530}' % (MACHINE, ENTRIES),
]
REAL_DEVICE_FILES = [
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check",'
    b'"ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},"AllocResp":'
    b'"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},'
    b'"Checksum":3660592824}',
]


@pytest.mark.parametrize("content", REAL_CPU_FILES)
def test_cpu_files_of_real_kubelets_are_read_and_written_byte_for_byte(content: bytes) -> None:
    assert encode_cpu_state(decode_cpu_state(content)) == content


@pytest.mark.parametrize("content", REAL_MEMORY_FILES)
def test_memory_files_of_real_kubelets_are_read_and_written_byte_for_byte(content: bytes) -> None:
    assert encode_memory_state(decode_memory_state(content)) == content


@pytest.mark.parametrize("content", REAL_DEVICE_FILES)
def test_device_files_of_real_kubelets_are_read_and_written_byte_for_byte(content: bytes) -> None:
    assert encode_device_state(decode_device_state(content)) == content


def test_what_was_written_is_read_back() -> None:
    cpus = CpuManagerState("static", "0,8", {"b": {"x": "1-3"}, "a": {"y": "4", "init": "5-7"}})
    assert decode_cpu_state(encode_cpu_state(cpus)) == cpus
    table = MemoryTable(total=8, system_reserved=1, allocatable=7, reserved=3, free=4)
    machine = {number: NumaNodeState(1, {"memory": table, "hugepages-2Mi": table}, [number]) for number in (10, 2, 0)}
    memory = MemoryManagerState("Static", machine, {"a": {"y": [MemoryEntry([0, 2], "memory", 3)]}})
    written = encode_memory_state(memory)
    assert decode_memory_state(written) == memory
    assert written.index(b'"10":') < written.index(b'"2":'), "keys of JSON are sorted as text"
    devices = DeviceManagerState(
        [DeviceEntry("a", "y", "r/x", {1: ["d1"], 0: ["d0", "d1"], -1: ["d9"]})], {"r/x": ["d0"], "a/x": []}
    )
    assert decode_device_state(encode_device_state(devices)) == devices
    nothing = DeviceManagerState(None, {})
    assert b'"PodDeviceEntries":null' in encode_device_state(nothing)
    assert decode_device_state(encode_device_state(nothing)) == nothing


def test_a_file_of_a_newer_kubelet_with_more_fields_is_read() -> None:
    content = REAL_CPU_FILES[2].removesuffix(b"}") + b',"later":{}}'
    assert decode_cpu_state(content) == decode_cpu_state(REAL_CPU_FILES[2])
    content = REAL_DEVICE_FILES[0].removesuffix(b"}") + b',"BootID":"x"}'
    assert decode_device_state(content) == decode_device_state(REAL_DEVICE_FILES[0])


#: As `CPUManagerCheckpointV4.MarshalCheckpoint` of v1.37.2 seals it: `checksum.New` of the text in `data`.
V4 = (
    b'{"policyName":"static","defaultCpuSet":"0-15","checksum":1,"data":"{\\"policyName\\":\\"static\\",'
    b'\\"defaultCpuSet\\":\\"0,4-15\\",\\"entries\\":{\\"u1\\":{\\"main\\":\\"1-3\\"}}}","dataChecksum":2873496738}'
)


def test_of_a_file_of_1_37_the_contents_with_their_own_checksum_count() -> None:
    state = decode_cpu_state(V4)
    assert (state.policy, state.shared, state.entries) == ("static", "0,4-15", {"u1": {"main": "1-3"}})
    with pytest.raises(InvalidObject, match=r"cpu_manager_state: dataChecksum: does not fit .*: 2873496738"):
        decode_cpu_state(V4.replace(b"1-3", b"1-4"))
    with pytest.raises(InvalidObject, match=r"cpu_manager_state: dataChecksum: .*: 0"):
        decode_cpu_state(V4.replace(b"2873496738", b"0"))


def test_a_file_without_checksum_is_read_as_the_kubelet_reads_it() -> None:
    assert decode_cpu_state(b'{"policyName":"static","defaultCpuSet":"1","checksum":0}').shared == "1"


def test_a_torn_or_edited_file_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidObject, match=r"cpu_manager_state: content"):
        decode_cpu_state(REAL_CPU_FILES[2][:60])
    with pytest.raises(InvalidObject, match=r"cpu_manager_state: content"):
        decode_cpu_state(b"")
    with pytest.raises(InvalidObject, match=r"cpu_manager_state: checksum: .* 3558029577"):
        decode_cpu_state(REAL_CPU_FILES[2].replace(b'"1-12"', b'"1-11"'))
    with pytest.raises(InvalidObject, match=r"memory_manager_state: checksum"):
        decode_memory_state(REAL_MEMORY_FILES[0].replace(b'"size":512', b'"size":513'))
    with pytest.raises(InvalidObject, match=r"memory_manager_state: content"):
        decode_memory_state(b"[]")
    with pytest.raises(InvalidObject, match=r"kubelet_internal_checkpoint: checksum"):
        decode_device_state(REAL_DEVICE_FILES[0].replace(b'"check"', b'"other"'))
    with pytest.raises(InvalidObject, match=r"kubelet_internal_checkpoint: content"):
        decode_device_state(b'{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}')
    with pytest.raises(InvalidObject, match=r"podEntries: not a list of CPU ids: '7-x'"):
        decode_cpu_state(REAL_CPU_FILES[3].replace(b"7-9", b"7-x"))


def test_a_file_of_kubelet_1_36_0_that_hashes_the_other_name_is_read() -> None:
    state = decode_cpu_state(REAL_CPU_FILES[1])
    assert decode_cpu_state(msgspec.json.encode({**msgspec.to_builtins(state), "checksum": 2328562530})) == state
