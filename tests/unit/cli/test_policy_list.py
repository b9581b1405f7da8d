"""`kai policy list`: the score table with what fills each band, and the policies of a shard."""

import json
from pathlib import Path

from kaicore.policy import PolicyBand
from kaicore.rules.engine.placement.node_score import BANDS
from kaicore.rules.engine.policies.builtin import BUILT_IN

from tests.given.processes.kai_commands import kai

EXAMPLES = Path(__file__).parents[3] / "examples/policies"
_FULL = """
import numpy as np
from kaicore.policy import Policy

class Alphabet(Policy):
    \"\"\"Nodes by the alphabet.\"\"\"

    name, version, band = "alphabet", "3", "full"

    def score(self, nodes, work, facts):
        return np.argsort(np.argsort(nodes.names)) % 1000
"""


def settings(folder: Path) -> Path:
    (folder / "alphabet.py").write_text(_FULL)
    path = folder / "settings.yaml"
    path.write_text(
        "policies:\n"
        f"  - {{file: {EXAMPLES}/spot_last.py, arguments: {{weight: 700}}, queues: [research]}}\n"
        f"  - {{file: {EXAMPLES}/rack_power.py}}\n"
        "  - {file: alphabet.py}\n"
    )
    return path


def test_every_band_but_the_last_has_built_in_rules_that_are_policies_of_that_band() -> None:
    listing = json.loads(kai("policy", "list", "-o", "json").stdout)
    rows = {row["name"]: row for row in listing["builtIn"]}
    assert [*rows] == [*BUILT_IN]
    assert all(row["builtIn"] and row["points"] == ["score"] and row["meaning"] for row in rows.values())
    by_band = {band: [name for name, row in rows.items() if row["band"] == band] for band in [*BANDS][:-1]}
    assert all(by_band.values())
    assert by_band.keys() == {*PolicyBand} - {"preferred"}
    assert {band["band"]: band["builtIn"] for band in listing["bands"]} == {"preferred": [], "name": []} | by_band


def test_bands_say_what_fills_them_and_policies_what_their_arguments_mean(tmp_path: Path) -> None:
    done = kai("policy", "list", "--scheduler-config", str(settings(tmp_path)), "-o", "json")
    listing = json.loads(done.stdout)
    assert done.returncode == 0
    filled = {band["band"]: band["filledBy"] for band in listing["bands"]}
    assert [*filled] == ["preferred", *BANDS]
    assert (filled["preferred"], filled["full"], filled["zones"]) == (["spot-last"], ["alphabet"], ["good-zones"])
    spot, rack, alphabet = listing["policies"]
    assert (spot["points"], spot["queues"], spot["live"], rack["live"]) == (["score"], ["research"], False, True)
    assert alphabet["meaning"] == "Nodes by the alphabet."
    (weight,) = spot["arguments"]
    assert weight == {"name": "weight", "value": 700, "default": 500, "meaning": "points of a node that stays"}


def test_list_for_people_names_policies_with_version_digest_and_queues(tmp_path: Path) -> None:
    done = kai("policy", "list", "--scheduler-config", str(settings(tmp_path)))
    assert done.returncode == 0
    assert "good-zones (built-in)" in done.stdout
    for part in ("alphabet 3: Nodes by the alphabet.", "for research", "watts_per_rack", "asked again after charges"):
        assert part in done.stdout
    assert "no policies in the settings" in kai("policy", "list").stdout


def test_policy_that_is_there_twice_is_a_bad_setting(tmp_path: Path) -> None:
    path = settings(tmp_path)
    path.write_text(path.read_text() + "  - {file: alphabet.py}\n")
    done = kai("policy", "list", "--scheduler-config", str(path))
    assert done.returncode == 2
    assert "alphabet: is there twice" in done.stderr
