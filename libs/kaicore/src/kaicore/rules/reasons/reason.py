"""Why a pod waits, as data: cycles record it, answers and conditions say it in words."""

import msgspec


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why nodes were not for a class of pods, counted over nodes.

    Attributes:
        code: see `kaicore.rules.engine.explain.reasons`.
        nodes: how many nodes said no for this reason first.
        example: one of them: the first by name.
        resource: what is short, if anything.
        zone: where on the example, if in a zone.
        need: how much is needed there, in the resource's unit.
        free: how much is free there.
        detail: a taint, a label, a policy: whatever else the code speaks of.
        rejection: the reason with which those kubelets would reject the pod, if it is they who say no.
        queue: whose bound or state stands in the way (`kaicore.rules.queues.refusals`).
        until: when this ends by itself, microseconds since the epoch; 0 if it does not.
        group: the object that groups pods and of which the code speaks: `<kind> <namespace>/<name>`.
    """

    code: str
    nodes: int = 0
    example: str = ""
    resource: str = ""
    zone: str = ""
    need: int = 0
    free: int = 0
    detail: str = ""
    rejection: str = ""
    queue: str = ""
    until: int = 0
    group: str = ""
