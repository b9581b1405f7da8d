"""`kai policy list`: the score table with what fills each band, and the policies of a shard with their arguments."""

from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import indent

import msgspec
from kaicore.policy import MOST, Point, Policy, PolicyBand
from kaicore.rules.engine.config import PolicySetting
from kaicore.rules.engine.placement.node_score import BANDS, score_range
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.policies.builtin import BUILT_IN
from kaicore.runtime.policies.loading import GROUP, load_policy
from kaicore.runtime.shard_settings import read_shard_settings

from kai_cli.output import OutputFlag, print_answer, table

#: The mark of the rules of the score table that are the program's own.
BUILT_IN_MARK = "built-in"
_Loaded = tuple[PolicySetting, Policy]

#: No policy is asked for it: the pods' own preferences come before all bands.
_OWN = "preferences of the pod itself"


class BandRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A band of the score table, the most important first.

    Attributes:
        least: score of a policy there; `most` likewise.
        filled_by: names of policies; of built-in rules where none of the settings fills it.
        built_in: names of the built-in rules of the band.
    """

    band: str
    least: int
    most: int
    filled_by: tuple[str, ...]
    built_in: tuple[str, ...]


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
        band: that it fills; empty where it scores no nodes.
        live: whether it is asked again after charges.
        built_in: whether it is a rule of the score table that comes with the program.
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
    band: str = ""
    built_in: bool = False
    arguments: tuple[ArgumentRow, ...] = ()


class PolicyListing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer; `installed` are those of packages that the settings do not name, `built_in` rules of the table."""

    bands: tuple[BandRow, ...]
    policies: tuple[PolicyRow, ...]
    installed: tuple[PolicyRow, ...]
    built_in: tuple[PolicyRow, ...] = ()


def list_policies(*, scheduler_config: Path | None = None, output: OutputFlag = "table") -> None:
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


def listing_of(
    configured: Sequence[_Loaded], installed: Sequence[_Loaded], built_in: Sequence[_Loaded] = ()
) -> PolicyListing:
    """Return the listing of policies that settings name, of those that packages have, and of the built-in ones."""
    digests = {setting.digest for setting, _ in configured}
    return PolicyListing(
        bands=tuple(_bands(configured, built_in)),
        policies=tuple(map(_row, configured)),
        installed=tuple(_row(one) for one in installed if one[0].digest not in digests),
        built_in=tuple(_row(one, built_in=True) for one in built_in),
    )


def _bands(configured: Sequence[_Loaded], built_in: Sequence[_Loaded]) -> Iterator[BandRow]:
    filled, own = _by_band(configured), _by_band(built_in)
    preferred, name = PolicyBand.PREFERRED.value, [*BANDS][-1]
    yield BandRow(band=preferred, least=0, most=MOST, filled_by=filled.get(preferred, ()), built_in=())
    for band in BANDS.values():
        rules = own.get(band.name, ())
        by = filled.get(band.name, rules) if band.name != name else (name,)
        least, most = score_range(band.name) if rules else (band.least, band.most)
        yield BandRow(band=band.name, least=least, most=most, filled_by=by, built_in=rules)


def _by_band(policies: Sequence[_Loaded]) -> dict[str, tuple[str, ...]]:
    by_band: dict[str, tuple[str, ...]] = {}
    for setting, policy in policies:
        if band := _band(policy):
            by_band[band] = *by_band.get(band, ()), setting.name
    return by_band


def _band(policy: Policy) -> str:
    return PolicyBand(policy.band).value if Point.SCORE in policy.points() else ""


def _row(one: _Loaded, *, built_in: bool = False) -> PolicyRow:
    setting, policy = one
    fields = type(policy).Arguments.model_fields
    return PolicyRow(
        name=setting.name,
        version=setting.version,
        digest=setting.digest,
        points=setting.points,
        queues=setting.queues,
        live=policy.live,
        band=_band(policy),
        built_in=built_in,
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
        (row.band, f"{row.least} to {row.most}", _filled_by(row), ", ".join(row.built_in) or "-")
        for row in listing.bands
    ]
    parts = [f"the score of a node, the most important first, after {_OWN}:"]
    parts[0] += "\n" + table(("BAND", "SCORES", "FILLED BY", "BUILT-IN RULES"), bands)
    for head, rows in (
        ("policies of this shard", listing.policies),
        ("policies of packages", listing.installed),
        ("built-in rules, which are policies too", listing.built_in),
    ):
        if rows:
            parts.append(f"{head}:\n\n" + "\n\n".join(map(_policy_text, rows)))
    if not listing.policies:
        parts.append("no policies in the settings (--scheduler-config)")
    return "\n\n".join(parts)


def _filled_by(row: BandRow) -> str:
    names, own = ", ".join(row.filled_by) or "-", {*row.built_in, "name"}
    return f"{names} ({BUILT_IN_MARK})" if row.filled_by and own.issuperset(row.filled_by) else names


def _policy_text(row: PolicyRow) -> str:
    queues = ", ".join(row.queues) or "all queues"
    band = f", band {row.band}" if row.band else ""
    again = ", asked again after charges" if row.live else ""
    mark = f"; {BUILT_IN_MARK}" if row.built_in else ""
    lines = [
        f"{row.name} {row.version}" + (f": {row.meaning}" if row.meaning else ""),
        f"  {', '.join(row.points)}{band}{again}; for {queues}; digest {row.digest[:12]}{mark}",
    ]
    if row.arguments:
        arguments = [(one.name, str(one.value), str(one.default), one.meaning) for one in row.arguments]
        lines.append(indent(table(("ARGUMENT", "VALUE", "DEFAULT", "MEANING"), arguments), "  "))
    return "\n".join(lines)
