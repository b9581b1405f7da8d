"""The file and the settings of the guide to policies are such as its commands take."""

from pathlib import Path

from tests.given.processes.kai_commands import kai

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/write-a-policy.md").read_text()


def block(language: str) -> str:
    """The page's only code block of a language."""
    assert PAGE.count(f"```{language}\n") == 1
    return PAGE.partition(f"```{language}\n")[2].partition("```")[0]


def test_page_has_a_policy_that_holds_and_settings_that_name_it(tmp_path: Path) -> None:
    (tmp_path / "spot_last.py").write_text(block("python"))
    (tmp_path / "trial.yaml").write_text(block("yaml"))
    checked = kai("policy", "check", "spot_last.py", "--budget-ms", "2000", "--clusters", "10", cwd=tmp_path)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "all 6 properties hold")
    listed = kai("policy", "list", "--scheduler-config", "trial.yaml", cwd=tmp_path)
    assert listed.returncode == 0
    assert "spot-last 1" in listed.stdout
    assert "for default" in listed.stdout


def test_page_names_every_point() -> None:
    for point in (
        "filter(nodes, work, facts)",
        "score(",
        "order(group, queue, facts)",
        "victims(running",
        "admit(group",
    ):
        assert f"- `{point}" in PAGE
