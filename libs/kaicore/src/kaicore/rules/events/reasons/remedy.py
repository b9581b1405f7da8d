"""Changes that would make a group schedulable. They are no reasons, but are reported beside them in the same form."""

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.model.quantity import format_amount


class FitsIf(CodedReason, frozen=True, kw_only=True):
    """The group would be schedulable now if its pods requested less of a resource.

    Attributes:
        example: a node that one of the pods would go to.
        resource: which.
        most: that each pod may request, in the resource's unit.
        scope: that it is meant per pod, and which containers request less.
    """

    example: str = ""
    resource: str = ""
    most: int = field(name="need", default=0)
    scope: str = field(name="detail", default="")

    def __str__(self) -> str:
        scope = f" {self.scope}" if self.scope else ""
        most = format_amount(self.resource, self.most)
        return f"would become schedulable if {self.resource} ≤ {most}{scope} (such as {self.example})"


class FitsAfter(CodedReason, frozen=True, kw_only=True):
    """The group would be schedulable when other pods have ended.

    Attributes:
        example: a node that one of them is on.
        pods: how many pods.
        group: `<kind> <namespace>/<name>` of their group; empty where they are ending already.
    """

    example: str = ""
    pods: int = field(name="need", default=0)
    group: str = field(name="detail", default="")

    def __str__(self) -> str:
        if not self.group:
            return f"would become schedulable when the pods that are ending are gone (such as {self.example})"
        held = f"its {self.pods} pods, such as " if self.pods > 1 else ""
        return f"would become schedulable if {self.group} ends ({held}on {self.example})"
