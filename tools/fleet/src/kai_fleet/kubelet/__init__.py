"""A model of one kubelet's admission and resource managers: pure, no I/O, no clock.

It is the witness against which predictions are checked, so it shares no rule with the scheduler: it is written from
the recorded behaviour of the kubelet (`pkg/kubelet/cm`, 1.36) and keeps what the kubelet keeps: CPU ids, device ids,
memory groups, and what init containers lend.
"""

from kai_fleet.kubelet.kubelet import Kubelet
from kai_fleet.kubelet.machine import Device, KubeletConfig, Machine
from kai_fleet.kubelet.pod import Container, Pod, Rejection

__all__ = ["Container", "Device", "Kubelet", "KubeletConfig", "Machine", "Pod", "Rejection"]
