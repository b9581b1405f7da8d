"""Profiles of small fleets for whole stacks, with nodes alike but for what a test is about."""


def nodes(
    count: int,
    zones: int,
    *,
    name: str = "gpu",
    cpus: int = 8,
    memory: str = "32Gi",
    gpus: int = 0,
    policy: str = "best-effort",
    reserved: int = 1,
    period: str = "60s",
    also: str = "",
) -> str:
    """A group of a profile; its kubelets give whole CPUs for good, and pods end within 100 ms."""
    devices = f", devices: {{nvidia.com/gpu: {gpus}}}" if gpus else ""
    held = f'{{cpu: "{reserved}", memory: 1Gi}}'
    return f"""
  - name: {name}
    count: {count}
    zones: {zones}
    perZone: {{cpus: {cpus}, memory: {memory}{devices}}}
    kubelet: {{topologyManagerPolicy: {policy}, cpuManagerPolicy: static, kubeReserved: {held}}}
    nrt: {{publisher: rte, delay: 200ms, jitter: 100ms, period: {period}}}
    timing: {{terminationSeconds: 100ms}}
    {also}"""


def fleet(*groups: str, above: str = "") -> str:
    """A profile of groups of nodes, with what stands above them in it."""
    return f"{above}\ngroups:{''.join(groups)}\n"


def aligned(count: int, **more: object) -> str:
    """A group of nodes with two zones of 4 GPUs, one of which has to give a container all that it asks for."""
    return nodes(count, 2, **{"gpus": 4, "policy": "single-numa-node", **more})  # type: ignore[arg-type]


#: Two nodes with kubelets that want all of a container in one of two zones, of 7 and 8 CPUs and 4 GPUs.
TWO_ALIGNED_NODES = fleet(aligned(2))
