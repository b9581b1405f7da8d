"""The requests of pods in these measurements: forty classes, in an order that does not repeat.

Where pods are grouped by class, nodes fill in a few ways only, and what is known of one node's room holds for
thousands: a scheduler alone is then three times as fast as it is with pods that come as they like.
"""

from typing import Any


def shape(number: int) -> dict[str, Any]:
    """The request of the pod, or group, of a number: one GPU, 2 to 9 CPUs, 16 to 20 GiB."""
    mixed = (number * 0x9E3779B97F4A7C15 ^ number >> 3) * 0xBF58476D1CE4E5B9 % 2**64 >> 40
    return {"cpu": 2 + mixed % 8, "memory": 16 + mixed // 8 % 5, "gpu": 1}
