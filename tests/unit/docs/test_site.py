"""The documentation builds as a site that needs no network, and none of its links leads nowhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: What a browser loads by itself; a link that a reader may follow is not among it.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?([^\s\">]+)|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|icon)\"?[^>]*\bhref=\"?([^\s\">]+)"
)
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
#: Pages of ours; KAI-Scheduler's designs, which rules cite, lie in `docs/developer` of its repository.
_MENTION = re.compile(r"(?<![\w/.])docs/(?!developer/)[\w/-]+\.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--site-dir", directory],
        cwd=ROOT,
        # Colours of code have no links, and take a quarter of the time.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "HIGHLIGHT": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    loaded = {source or style for page in pages for source, style in _LOADED.findall(page.read_text())}
    assert any(name.endswith(".js") for name in loaded)
    assert any(name.endswith(".css") for name in loaded)
    assert [name for name in loaded if "//" in name] == []
    sheets = "".join(sheet.read_text() for sheet in site.rglob("*.css"))
    assert re.findall(r"url\(\"?'?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;", sheets) == []


def test_site_search_works_without_a_server(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text().startswith("var __index")
    assert "iframe-worker" in (site / "index.html").read_text()


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md", "deploy/k8s/README.md"],
)
def test_link_of_a_page_outside_the_site_leads_to_a_file(page: str) -> None:
    path = ROOT / page
    targets = [target for target in _LINK.findall(path.read_text()) if "://" not in target]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_page_that_is_mentioned_anywhere_exists() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    missing = []
    for name in listed:
        path = ROOT / name
        if not name or path.suffix in {".lock", ".gz", ".jsonl", ".png", ".zst"} or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        missing += [f"{name}: {mention}" for mention in _MENTION.findall(text) if not (ROOT / mention).exists()]
    assert missing == []
