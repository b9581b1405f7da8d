"""Names of the code in pages and docstrings, `kaicore.rules.numa` for example, exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "libs/kaicore/src"
_NAMED = re.compile(r"`(kaicore(?:\.\w+)+)(?!\*)\b(?<!_)")


def exists(dotted: str) -> bool:
    """True if a dotted name is a module, or a name that a module defines or imports."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = LIBRARY.joinpath(*parts[:length])
        module = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if not module.is_file():
            continue
        body: list[ast.stmt] = ast.parse(module.read_text()).body
        for name in parts[length:]:
            inner = next((node for node in body if name in names_of(node)), None)
            if inner is None:
                return False
            body = inner.body if isinstance(inner, ast.ClassDef) else []
        return True
    return False


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.AnnAssign):
        return {node.target.id} if isinstance(node.target, ast.Name) else set()
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def test_what_pages_and_docstrings_name_of_the_library_exists() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    code = [path for folder in ("libs", "services", "tools") for path in (ROOT / folder).rglob("*.py")]
    missing = {
        f"{path.relative_to(ROOT)}: {dotted}"
        for path in [*pages, *code, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for dotted in _NAMED.findall(path.read_text())
        if not exists(dotted)
    }
    assert sorted(missing) == []
