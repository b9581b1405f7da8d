"""The fleet of the chaos suite."""

#: Few nodes of all strict kinds, so that pods are in each other's way; as late as real kubelets were measured.
PROFILE = """
groups:
  - name: single
    count: 3
    zones: 2
    perZone: &zone {cpus: 16, memory: 64Gi, devices: {nvidia.com/gpu: 4}}
    kubelet: {topologyManagerPolicy: single-numa-node, cpuManagerPolicy: static, kubeReserved: {cpu: "2", memory: 2Gi}}
    nrt: &nrt {publisher: rte, delay: 500ms, jitter: 500ms, period: 10s}
    timing: &timing {startupDelay: 100ms, startupJitter: 200ms, terminationSeconds: 300ms}
    lag: &lag {status: 2s, podresources: 400ms, sync: 100ms}
  - name: restricted
    count: 3
    zones: 2
    perZone: *zone
    kubelet:
      topologyManagerPolicy: restricted
      topologyManagerScope: pod
      cpuManagerPolicy: static
      memoryManagerPolicy: Static
      kubeReserved: {cpu: "2", memory: 2Gi}
    nrt: *nrt
    timing: *timing
    lag: *lag
"""
