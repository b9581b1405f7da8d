"""Additions of the site (mkdocs.yml) to docs/: links into the code, links to decisions, and folders in `nav`.

A page links code by file and symbol, `[text](../libs/kaicore/src/kaicore/errors.py#KaiError)`, relative to itself as
everywhere in Markdown. The site has a page for each file that is linked so. The link leads to the line on which the
symbol is defined when the site is built. `decision 0100` in a page's prose becomes a link to that decision.

The glossary ends with the public classes of kaicore, a line each, which are read from the code when the site is built.

Errors end the build: `DocsError` names page and link.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)#\s]+)(?:#([\w.-]+))?\)")
_DECISIONS = re.compile(r"(?<![\[\w])(decisions? )(\d{4})((?:(?:, | and )\d{4})*)")
_LISTED = re.compile(r"(?m)^- \[(\d{4})\]\(([\w-]+\.md)\): .*?(?:\(also ([\d, ]+)\))?$")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sql": "sql", ".md": "markdown"}


LIBRARY = ROOT / "libs" / "kaicore" / "src" / "kaicore"

#: Modules of objects as their JSON has them: their classes are called as Kubernetes, KAI, Kueue or Volcano call them.
UPSTREAM = ("kube/wire/*.py", "kube/wire/podresources/*_pb2.py")

#: Where the glossary's list of classes goes.
_CLASSES = "<!-- classes -->"


class DocsError(PluginError):
    """A page links a file, a symbol or a decision that does not exist."""


@cache
def symbols(path: Path) -> dict[str, int]:
    """The lines on which a Python file defines its classes, functions and constants, by name (`Class.method` too)."""
    defined: dict[str, int] = {}

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                defined.setdefault(prefix + node.name, node.lineno)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        defined.setdefault(prefix + target.id, node.lineno)

    walk(ast.parse(path.read_text()).body, "")
    return defined


def outside(page: Path, target: str, docs: Path) -> Path | None:
    """The file of the repository that a link of a page names, if it lies outside `docs`.

    Raises:
        DocsError: there is no such file.
    """
    path = (page.parent / target).resolve()
    if path.is_relative_to(docs):
        return None
    if not path.is_relative_to(ROOT) or not path.exists():
        raise DocsError(f"{page}: there is no {target}")
    return path


def source_page(path: Path) -> str:
    name = path.relative_to(ROOT)
    if path.is_dir():
        body = "\n".join(
            f"- `{child.name}`" for child in sorted(path.iterdir()) if not child.name.startswith((".", "_"))
        )
    else:
        language = _LANGUAGES.get(path.suffix, "text")
        body = f'~~~~~ {{.{language} linenums="1"}}\n{path.read_text()}\n~~~~~'
    return f"---\ntitle: {name.name}\nsearch: {{exclude: true}}\nhide: [toc, navigation]\n---\n# `{name}`\n\n{body}\n"


def source_uri(path: Path) -> str:
    return f"source/{path.relative_to(ROOT)}.md"


def public_classes() -> Iterator[tuple[str, str, str]]:
    """Module, name and the docstring's first paragraph of every public class of kaicore that is no upstream object."""
    for path in sorted(LIBRARY.rglob("*.py")):
        module = path.relative_to(LIBRARY)
        if any(module.match(pattern) for pattern in UPSTREAM):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
                yield str(module), node.name, " ".join(paragraph.split())


def class_tables() -> str:
    """The public classes of kaicore, a table for each package."""
    packages: dict[str, list[str]] = {}
    for module, name, meaning in public_classes():
        package = ".".join(("kaicore", *module.split("/")[:-1][:2]))
        row = f"| `{name}` | {meaning.replace('|', '&#124;')} | `{module}` |"
        packages.setdefault(package, []).append(row)
    head = "| class | meaning | in |\n| --- | --- | --- |\n"
    return "\n\n".join(f"### {name}\n\n{head}" + "\n".join(sorted(rows)) for name, rows in sorted(packages.items()))


@cache
def decisions() -> dict[str, str]:
    """The page of each decision by its number, and by the numbers of the earlier pages that it replaces."""
    listed = _LISTED.findall((ROOT / "docs/decisions/README.md").read_text())
    return {number: page for own, page, also in listed for number in (own, *re.findall(r"\d{4}", also))}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where `nav` names the folder."""
    docs = Path(config.docs_dir)
    for entry in config.nav or []:
        ((title, value),) = entry.items()
        if isinstance(value, str) and value.endswith("/"):
            pages = sorted((docs / value).glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
            entry[title] = [str(path.relative_to(docs)) for path in pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that some page links."""
    docs = Path(config.docs_dir)
    for file in list(files.documentation_pages()):
        page = Path(file.abs_src_path or "")
        for link in _LINK.finditer(page.read_text()):
            path = outside(page, link[2], docs)
            if path is not None and files.get_file_from_path(source_uri(path)) is None:
                files.append(File.generated(config, source_uri(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links into the repository, and numbers of decisions, links of the site."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    where = Path(page.file.abs_src_path or "")
    if _CLASSES in markdown:
        markdown = markdown.replace(_CLASSES, class_tables())

    def to_source(link: re.Match[str]) -> str:
        text, target, symbol = link[1], link[2], link[3]
        path = outside(where, target, Path(config.docs_dir))
        if path is None:
            return link[0]
        file = files.get_file_from_path(source_uri(path))
        assert file is not None
        url = get_relative_url(file.url, page.url)
        if symbol:
            if path.suffix != ".py" or symbol not in symbols(path):
                raise DocsError(f"{where}: {target} defines no {symbol}")
            url += f"#__codelineno-0-{symbols(path)[symbol]}"
        return f'<a href="{url}">{text}</a>'

    def to_decision(number: str) -> str:
        if number not in decisions():
            raise DocsError(f"{where}: no decision has the number {number}")
        file = files.get_file_from_path(f"decisions/{decisions()[number]}")
        assert file is not None
        return f'<a href="{get_relative_url(file.url, page.url)}">{number}</a>'

    def to_decisions(mention: re.Match[str]) -> str:
        numbers = re.sub(r"\d{4}", lambda number: to_decision(number[0]), mention[2] + mention[3])
        return mention[1] + numbers

    parts = re.split(r"(^```.*?^```$|^~~~.*?^~~~$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for index in range(0, len(parts), 2):
        parts[index] = _DECISIONS.sub(to_decisions, _LINK.sub(to_source, parts[index]))
    return "".join(parts)
