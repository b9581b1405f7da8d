"""The page `docs/reference/gpu-share-conformance.md`: the ways to ask for a part of a GPU, and what becomes of each.

Each row names the tests that show it.
"""

from dataclasses import dataclass

from kaicore.kube.normalize.share_dialects import SHARE_DIALECTS

_NORMALIZE = "tests/unit/kube/test_normalize_gpu_share.py"
_DIALECTS = "tests/unit/kube/test_share_dialects.py"
_SIMULATED = "tests/unit/trial/simulation/test_share_dialects.py"
_KAI = "tests/unit/trial/simulation/test_kai_gpu_sharing.py"
_VICTIMS = "tests/unit/trial/simulation/test_kai_gpu_victims.py"
_CASES = f"{_VICTIMS}::test_manifests_of_kais_cases_come_out_as_there_or_as_deviations_say"
_WITHOUT_VICTIMS = f"{_KAI}::test_manifests_of_kais_cases_come_out_as_there"
_TRANSLATED = f"{_DIALECTS}::test_virtual_gpus_become_a_share_that_no_kubelet_is_asked_for"
_REFUSED = f"{_DIALECTS}::test_virtual_gpus_that_cannot_be_carried_out_are_refused_by_field_with_what_to_do"


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A way to ask.

    Attributes:
        asked: what stands on the pod.
        answer: what kai-ledger does.
        tests: those that show it, as pytest names them.
    """

    asked: str
    answer: str
    tests: tuple[str, ...]


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


#: How each dialect's amounts are read.
_READ = {"HAMi": "per GPU", "Volcano": "per GPU", "Koordinator": "of all GPUs together"}

ROWS: tuple[ShareRow, ...] = (
    ShareRow(
        "KAI: `gpu-fraction`, `gpu-memory`, `gpu-fraction-num-devices`, `gpu-fraction-container-name`",
        "as KAI",
        (
            f"{_NORMALIZE}::test_share_of_a_gpu_is_read_as_thousandths_or_mib",
            _WITHOUT_VICTIMS,
            _CASES,
        ),
    ),
    *(
        ShareRow(
            f"{one.name}: {_names(one.resources)}",
            f"translated; amounts {_READ[one.name]}",
            (_TRANSLATED, f"{_SIMULATED}::test_pods_of_all_dialects_share_one_gpu"),
        )
        for one in SHARE_DIALECTS
    ),
    ShareRow(
        f"several containers, {_names(tuple(name for one in SHARE_DIALECTS for name in one.choices))}",
        "refused",
        (_REFUSED,),
    ),
    ShareRow(
        "virtual GPUs that kai-webhook did not see",
        "waits, with the reason",
        (f"{_DIALECTS}::test_pod_that_no_webhook_saw_waits_with_what_to_do",),
    ),
    ShareRow(
        "MIG: `nvidia.com/mig-3g.20gb`",
        "queues count 3 GPUs, as KAI",
        (
            f"{_NORMALIZE}::test_mig_devices_are_ordinary_resources",
            _CASES,
        ),
    ),
    ShareRow(
        "MIG by annotation: `nvidia.com/mig-1g.10gb`",
        "waits, with the reason",
        (f"{_NORMALIZE}::test_mig_devices_by_annotation_wait_with_what_to_do",),
    ),
    ShareRow(
        "shares of MIG devices",
        "refused, as KAI",
        (_WITHOUT_VICTIMS,),
    ),
    ShareRow(
        "claims with [consumable capacity](device-conformance.md)",
        "by the driver; queues count nothing",
        (f"{_SIMULATED}::test_claims_with_consumable_capacity_share_a_device_without_reservation_pods",),
    ),
)


_MEMORY = (
    "tests/unit/engine/test_shares.py"
    "::test_memory_that_waits_counts_in_its_queue_as_the_part_of_the_smallest_gpu_and_then_as_what_it_holds"
)

#: What is asked in the rows about deviations from KAI: the situation.
DEVIATIONS: tuple[ShareRow, ...] = (
    ShareRow("victims that lose equally much", "the first by name goes", (_CASES,)),
    ShareRow("one pod, or two that share a GPU", "one goes", (_CASES,)),
    ShareRow("pods are spread", "open GPUs first", (f"{_KAI}::test_shares_are_spread",)),
    ShareRow("whole GPUs beside MIG devices", "given", (_WITHOUT_VICTIMS,)),
    ShareRow("nodes with MIG by annotation", "take more", (_CASES,)),
    ShareRow("`gpu-memory` that waits", "part of the smallest GPU", (_MEMORY,)),
)


def shares() -> str:
    """The ways to ask for a part of a GPU, and where KAI differs."""
    deviating = [f"- {row.asked}: {row.answer}" for row in DEVIATIONS]
    asked = _table("a pod asks by", ROWS)
    return "\n".join(["# Conformance of shares of GPUs", "", *asked, "", "KAI differs:", "", *deviating, ""])


def _table(first: str, rows: tuple[ShareRow, ...]) -> list[str]:
    lines = [f"| {first} | kai-ledger | shown by |", "|---|---|---|"]
    for row in rows:
        tests = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in row.tests)
        lines.append(f"| {row.asked} | {row.answer} | {tests} |")
    return lines
