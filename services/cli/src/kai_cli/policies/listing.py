"""`kai policy list`: the score table with what fills each band, and the policies of a shard with their arguments."""

from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import msgspec
from kaicore.policy import MOST, Point, Policy, PolicyBand
from kaicore.rules.engine.placement.node_score import BANDS
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.policies.builtin import BUILT_IN
from kaicore.rules.engine.policies.setting import PolicySetting
from kaicore.runtime.policies.loading import GROUP, load_policy
from kaicore.runtime.shard_settings import read_shard_settings

from kai_cli.output import OutputFlag, print_answer, table

#: The built-in rule of each band, for people.
RULES = {
    "leaves_devices": "nodes with devices are for pods that ask for some",
    "avoided": "nodes that pods of the class are to leave alone come last",
    "keeps_policy": "nodes that keep the pod's own NUMA policy",
    "turn": "nodes that other replicas of the shard take first come later",
    "zones": "zones that serve the pod well (numa_scoring)",
    "room_taken": "little room taken from recent work (recent_work_days); for pods without devices, idle-devices",
    "opened": "few GPUs to open for a share",
    "full": "packed or spread, by placement_strategy",
    "name": "names, so that no two nodes are equal",
}
_Loaded = tuple[PolicySetting, Policy]

#: No policy is asked for it: the pods' own preferences come before all bands.
_OWN = "preferences of the pod itself"


class BandRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A band of the score table, the most important first.

    Attributes:
        least: score; `most` likewise.
        filled_by: names of policies, or `built-in`.
        rule: of the built-in one; empty where only policies fill it.
    """

    band: str
    least: int
    most: int
    filled_by: tuple[str, ...]
    rule: str


class ArgumentRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An argument of a policy, with its value in the setting and its meaning in the policy's model."""

    name: str
    value: object
    default: object
    meaning: str


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A policy.

    Attributes:
        queues: for which it decides; empty for all.
        live: whether it is asked again after charges.
        meaning: first line of its docstring.
        arguments: in the model's order.
    """

    name: str
    version: str
    digest: str
    points: tuple[str, ...]
    queues: tuple[str, ...]
    live: bool
    meaning: str
    arguments: tuple[ArgumentRow, ...]


class PolicyListing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer; `installed` are those of packages that the settings do not name, `built_in` rules of the table."""

    bands: tuple[BandRow, ...]
    policies: tuple[PolicyRow, ...]
    installed: tuple[PolicyRow, ...]
    built_in: tuple[PolicyRow, ...] = ()


def list_policies(*, scheduler_config: Path | None = None, output: OutputFlag = "table") -> int:
    """List the bands of the score table with what fills each, and the policies of a shard with their arguments.

    Args:
        scheduler_config: the shard's settings, the YAML file that kai-scheduler takes; by default no policies.
    """
    book = PolicyBook()
    config = read_shard_settings(scheduler_config, book)
    loaded = [[load_policy(one) for one in names] for names in ([e.name for e in entry_points(group=GROUP)], BUILT_IN)]
    for one in (one for some in loaded for one in some):
        book.add(one.kind, one.setting.digest)
    installed, built_in = ([one.setting for one in some] for some in loaded)
    listing = listing_of(book.policies(config.policies), book.policies(installed), book.policies(built_in))
    print_answer(listing, output, lambda: listing_text(listing))
    return 0


def listing_of(
    configured: Sequence[_Loaded], installed: Sequence[_Loaded], built_in: Sequence[_Loaded] = ()
) -> PolicyListing:
    """Return the listing of policies that settings name, of those that packages have, and of the built-in ones."""
    digests = {setting.digest for setting, _ in configured}
    return PolicyListing(
        bands=tuple(_bands(configured)),
        policies=tuple(map(_row, configured)),
        installed=tuple(_row(one) for one in installed if one[0].digest not in digests),
        built_in=tuple(map(_row, built_in)),
    )


def _bands(configured: Sequence[_Loaded]) -> Iterator[BandRow]:
    by_band: dict[str, list[str]] = {}
    for setting, policy in configured:
        if Point.SCORE in policy.points():
            by_band.setdefault(PolicyBand(policy.band).value, []).append(setting.name)
    preferred = PolicyBand.PREFERRED.value
    yield BandRow(band=preferred, least=0, most=MOST, filled_by=tuple(by_band.get(preferred, ())), rule="")
    for band in BANDS.values():
        filled = tuple(by_band.get(band.name, ("built-in",)))
        yield BandRow(band=band.name, least=band.least, most=band.most, filled_by=filled, rule=RULES[band.name])


def _row(one: _Loaded) -> PolicyRow:
    setting, policy = one
    fields = type(policy).Arguments.model_fields
    return PolicyRow(
        name=setting.name,
        version=setting.version,
        digest=setting.digest,
        points=setting.points,
        queues=setting.queues,
        live=policy.live,
        meaning=(policy.__doc__ or "").partition("\n")[0],
        arguments=tuple(
            ArgumentRow(
                name=name,
                value=setting.arguments[name],
                default=None if field.is_required() else field.get_default(call_default_factory=True),
                meaning=field.description or "",
            )
            for name, field in fields.items()
        ),
    )


def listing_text(listing: PolicyListing) -> str:
    """Return the listing for people."""
    bands = [
        (row.band, f"{row.least} to {row.most}", ", ".join(row.filled_by) or "-", row.rule or _OWN_LESS)
        for row in listing.bands
    ]
    parts = [f"the score of a node, the most important first, after {_OWN}:"]
    parts[0] += "\n" + table(("BAND", "SCORES", "FILLED BY", "BUILT-IN RULE"), bands)
    for head, rows in (
        ("policies of this shard", listing.policies),
        ("policies of packages", listing.installed),
        ("built-in rules that are policies", listing.built_in),
    ):
        if rows:
            parts.append(f"{head}:\n\n" + "\n\n".join(map(_policy_text, rows)))
    if not listing.policies:
        parts.append("no policies in the settings (--scheduler-config)")
    return "\n\n".join(parts)


#: Of the band that only policies fill.
_OWN_LESS = "none"


def _policy_text(row: PolicyRow) -> str:
    queues = ", ".join(row.queues) or "all queues"
    again = ", asked again after charges" if row.live else ""
    lines = [
        f"{row.name} {row.version}" + (f": {row.meaning}" if row.meaning else ""),
        f"  {', '.join(row.points)}{again}; for {queues}; digest {row.digest[:12]}",
    ]
    if row.arguments:
        arguments = [(one.name, str(one.value), str(one.default), one.meaning) for one in row.arguments]
        text = table(("ARGUMENT", "VALUE", "DEFAULT", "MEANING"), arguments)
        lines += [f"  {line}" for line in text.splitlines()]
    return "\n".join(lines)
