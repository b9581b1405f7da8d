"""No function, class or method of ours is dead: its name is elsewhere in our sources, templates or projects' files.

Tests do not count. What has a decorator of a framework is called by it. Words are counted: vulture takes 10 s where
this takes one, and reads neither strings nor templates, which name the commands and what pages show.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

FOLDERS = ("libs", "services", "tools", "scripts")
DEFINITION = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
#: Decorators that call nothing themselves.
PLAIN = re.compile(r"@(property|cached_property|staticmethod|classmethod|contextmanager|dataclass|cache)\b")
#: By who calls or shows it by its name.
CALLED_BY = {
    "asyncio": ("buffer_updated", "get_buffer"),
    "datetime": ("dst", "fromutc", "tzname"),
    "httptools": ("on_header", "on_message_begin"),
    "logging": ("emit",),
    "mkdocs": ("on_config", "on_files", "on_page_markdown"),
    "uvicorn": ("capture_signals", "main_loop", "startup"),
    "notebooks, by kai_ledger.client": ("to_dicts", "to_pandas"),
    "tests, of simulated API servers": ("plain_access",),
    "a docstring, as an example": ("SpotLast",),
}


def main() -> int:
    used: Counter[str] = Counter()
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(path for folder in FOLDERS for path in Path(folder).rglob("*.*")):
        # This file names the exceptions.
        left_out = path.stem.endswith(("_pb2", "_grpc")) or path.name == Path(__file__).name
        if left_out or path.suffix not in (".py", ".html", ".toml"):
            continue
        text = path.read_text("utf-8")
        used.update(re.findall(r"[A-Za-z_]\w*", text))
        for found in DEFINITION.finditer(text) if path.suffix == ".py" else ():
            before = text[: found.start()]
            decorators = re.findall(r"^ *(@[\w.]+)", before[before.rfind("\n\n") + 1 :], re.MULTILINE)
            called = any(not PLAIN.match(decorator) for decorator in decorators)
            line = before.count("\n") + 1
            places[found[1]].append("" if called else f"{path}:{line}: {found[1]}")
    called = {name for names in CALLED_BY.values() for name in names}
    unnamed = {name for name, there in places.items() if used[name] == len(there) and not name.startswith("__")}
    problems = [f"{place}: dead code" for name in unnamed - called for place in places[name] if place]
    problems += [f"{__file__}: {name} is named elsewhere, or gone" for name in called - unnamed]
    for problem in sorted(problems):
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
