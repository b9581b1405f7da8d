"""The one GPU of a reservation pod's container."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kai_gpu_reservation.main import own_gpu
from kaicore.errors import ConfigurationError

#: As much of NVML as the program asks, of a container with one GPU.
NVML = r"""
#include <string.h>
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)1; return 0; }
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) { strncpy(uuid, "GPU-of-nvml", length); return 0; }
"""


@pytest.mark.parametrize(
    ("named", "shown", "gpu"),
    [
        ("GPU-1", [], "GPU-1"),
        ("void", ["GPU-2"], "GPU-2"),
        ("0", ["GPU-2"], "GPU-2"),
        ("/var/run/nvidia-container-devices", ["GPU-2"], "GPU-2"),
        ("", ["gpu-0-1"], "gpu-0-1"),
    ],
)
def test_uuid_of_the_environment_is_taken_and_else_the_drivers(named: str, shown: list[str], gpu: str) -> None:
    assert own_gpu({"NVIDIA_VISIBLE_DEVICES": named}, driver=lambda: shown) == gpu


@pytest.mark.parametrize(("named", "shown"), [("", []), ("all", ["GPU-1", "GPU-2"]), ("GPU-1,GPU-2", [])])
def test_container_without_one_gpu_is_refused(named: str, shown: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="is to have one GPU"):
        own_gpu({"NVIDIA_VISIBLE_DEVICES": named}, driver=lambda: shown)


def asked(directory: Path) -> str:
    """The driver's answer to another process."""
    code = """
from kai_gpu_reservation.main import gpus_of_driver
try:
    print(gpus_of_driver())
except Exception as error:
    print(error)
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(directory)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_driver_is_asked_by_its_own_library(tmp_path: Path) -> None:
    assert "NVML Shared Library Not Found" in asked(tmp_path)
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(NVML)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    assert asked(tmp_path) == "['GPU-of-nvml']"
