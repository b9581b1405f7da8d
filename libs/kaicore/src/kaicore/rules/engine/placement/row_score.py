"""By what a row was ranked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowScore:
    """By what a row was ranked that can take a pod; the first part in which two rows differ decides between them.

    Attributes:
        row: the row.
        preference: how much the pod's own preferences are met, 0 and more; rows with less than the most come last.
        leaves_devices: whether it leaves alone devices that the pod does not ask for.
        turn: how many other replicas of the shard take it first, up to 3.
        avoided: whether pods of the class come here last, because of what happened to one.
        keeps_policy: whether it keeps the pod's own policy `best-effort`; also where the pod has none.
        choices: how early in their lists the alternatives are that its claims get (`DeviceScore.choices`).
        near: per cent of the zones of its CPUs that the devices of its claims are close to, -1 where it is not known.
        zones: how well its zones serve the pod, -1 to 100 (`kaicore.rules.numa.scoring`).
        whole: per cent of the devices of its claims that break up nothing of which nothing is in use.
        full: per mille in use of what the class asks for, afterwards; the more the better unless pods are spread.
    """

    row: int
    preference: int
    leaves_devices: bool
    turn: int
    avoided: bool
    keeps_policy: bool
    choices: int
    near: int
    zones: int
    whole: int
    full: int
