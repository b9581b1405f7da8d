"""Questions that assistants are asked, over recorded logs, with checked answers."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.given.logs.exported import write_file
from tests.given.recorded import DEMO, read_log

#: Names of the logs that are asked.
LOGS = ("demo", "demo-blind")


class Question(msgspec.Struct, frozen=True):
    """A question: what a person asks, the log, the tool with its arguments, and what the answer must say."""

    ask: str
    log: str
    tool: str
    arguments: dict[str, Any]
    expect: dict[str, Any]


def questions() -> list[Question]:
    return msgspec.convert(yaml.safe_load((Path(__file__).parent / "questions.yaml").read_text()), list[Question])


def log_file(directory: Path, name: str, folder: Path = DEMO) -> Path:
    """Return a recorded log as `kai export` writes it."""
    return write_file(directory / f"{name}.log.gz", read_log(folder / f"{name}.jsonl.xz"))


def found(answer: Any, path: str) -> Any:
    """Return what an answer says at a path such as `facts.last.0.pod`; of a list that is only counted, `len:N`."""
    for key in path.split("."):
        answer = answer[int(key)] if isinstance(answer, list) else answer[key]
    return f"len:{len(answer)}" if isinstance(answer, list) else answer
