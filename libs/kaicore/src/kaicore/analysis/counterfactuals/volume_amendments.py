"""Changes to volumes: a volume is created, bound or released."""

from collections.abc import Iterator

from kaicore.analysis.counterfactuals.amendment import Amendment, Effort
from kaicore.analysis.counterfactuals.asked import Asked, edited
from kaicore.analysis.counterfactuals.room_amendments import end_of
from kaicore.rules.events.payloads import (
    Payload,
    PersistentVolumeClaimDeleted,
    PersistentVolumeClaimObserved,
    PersistentVolumeDeleted,
    PersistentVolumeObserved,
)
from kaicore.rules.model.quantity import MEMORY, format_amount
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim
from kaicore.rules.reasons.pods_nearby import NoVolumeLeft, VolumeInUse, VolumeNotReady


def volume_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield changes of the volumes that the pods use."""
    for reason in asked.reasons:
        match reason:
            case VolumeNotReady():
                yield _bound(asked, reason)
            case NoVolumeLeft():
                yield from _made(asked, reason)
            case VolumeInUse():
                yield from _let_go(asked, reason)
            case _:
                pass


def _bound(asked: Asked, reason: VolumeNotReady) -> Amendment:
    """Return that each claim is there and bound to a volume that can be used on every node."""
    volumes = asked.state.constraints.volumes
    facts: list[Payload] = []
    undo: list[Payload] = []
    names: list[str] = []
    for number, use in enumerate(asked.pod.claims):
        if f"claim {use.name} " not in f"{reason.waits_for} ":
            continue
        before = volumes.claims.get(f"{asked.pod.namespace}/{use.name}")
        name = f"made-{number}"
        claim = before or PersistentVolumeClaim(f"{name}-claim", asked.pod.namespace, use.name, "")
        owner = asked.pod.uid if use.owned else claim.owner
        after = edited(claim, bound=True, volume=name, lost=False, deleting=False, owner=owner)
        facts += [PersistentVolumeObserved(_volume(name, claim)), PersistentVolumeClaimObserved(after)]
        undo += [
            PersistentVolumeClaimDeleted(claim.uid, claim.namespace, claim.name)
            if before is None
            else PersistentVolumeClaimObserved(before),
            PersistentVolumeDeleted(name, name),
        ]
        names.append(f"{asked.pod.namespace}/{use.name}")
    verb = "get PersistentVolumeClaim"
    words = f"{verb} {', '.join(names)} bound to a volume: {reason.waits_for}"
    return Amendment("bind-claim", words, Effort.MAKE_OBJECT, facts=facts, undo=undo, place=", ".join(names))


def _volume(name: str, claim: PersistentVolumeClaim) -> PersistentVolume:
    return PersistentVolume(
        uid=name,
        name=name,
        resource_version="",
        storage_class=claim.storage_class,
        phase="Available",
        capacity=claim.request,
        access_modes=claim.access_modes,
        volume_mode=claim.volume_mode,
        labels={one.key: one.values[0] for one in claim.selector if one.values},
    )


def _made(asked: Asked, reason: NoVolumeLeft) -> Iterator[Amendment]:
    claims = asked.state.constraints.volumes.claims
    open_claims = [claims.get(f"{asked.pod.namespace}/{use.name}") for use in asked.pod.claims]
    wanted = [one for one in open_claims if one is not None and one.storage_class == reason.storage_class]
    if not wanted:
        return
    volumes = [_volume(f"made-{number}", one) for number, one in enumerate(wanted)]
    most = max(one.request for one in wanted)
    words = (
        f"make a PersistentVolume of storage class {reason.storage_class} of {format_amount(MEMORY, most)} "
        f"for claim {', '.join(one.key for one in wanted)}"
    )
    yield Amendment(
        "make-volume",
        words,
        Effort.MAKE_OBJECT,
        facts=[PersistentVolumeObserved(one) for one in volumes],
        undo=[PersistentVolumeDeleted(one.uid, one.name) for one in volumes],
        resource="storage",
        amount=most,
        place=reason.storage_class,
    )


def _let_go(asked: Asked, reason: VolumeInUse) -> Iterator[Amendment]:
    namespace, _, name = reason.claim.partition("/")
    for entry in asked.state.pods.values():
        uses = any(use.name == name for use in entry.pod.claims)
        if entry.charged and uses and entry.pod.namespace == namespace:
            yield end_of([entry], f"end pod {entry.pod.subject} on {entry.node}, which uses claim {reason.claim}")
