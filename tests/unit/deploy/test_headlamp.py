"""The Headlamp plugin asks for what the API has and reads what its answers have; `make headlamp` runs its own tests."""

import json
import re
from pathlib import Path

import msgspec
from kai_api.routes import make_router
from kaicore.analysis.ask.answers import GroupRow, Listing, ReasonAnswer, Why
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.submission.submit import Submissions
from kaicore.ledger.log.memory import MemoryLog

PLUGIN = Path(__file__).parents[3] / "deploy" / "headlamp"
SOURCE = (PLUGIN / "src" / "api.ts").read_text("utf-8")


def test_fields_are_those_of_the_answers() -> None:
    interfaces = dict(re.findall(r"export interface (\w+) \{\n(.*?)\n\}", SOURCE, re.DOTALL))
    for answer in (Why, ReasonAnswer, GroupRow, Listing):
        fields = {field.encode_name for field in msgspec.structs.fields(answer)}
        named = set(re.findall(r"^  (\w+)\??:", interfaces[answer.__name__], re.MULTILINE))
        assert named
        assert named <= fields, answer.__name__


def test_recorded_answers_are_as_the_api_gives_them() -> None:
    answers = json.loads((PLUGIN / "src" / "answers.json").read_text("utf-8"))
    why = msgspec.convert(answers["why"], Why)
    assert (why.verdict, bool(why.reasons), bool(why.schedulable_if)) == ("pending", True, True)
    rows = msgspec.convert(answers["groups"]["items"], list[GroupRow])
    assert msgspec.to_builtins(rows) == answers["groups"]["items"]


def test_paths_are_those_of_the_api() -> None:
    inquiry = Inquiry(MemoryLog(clock=lambda: 0))
    routes = [route.path for route in make_router(inquiry, Submissions(inquiry)).routes]  # type: ignore[attr-defined]
    patterns = [re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in routes]
    asked = re.findall(r"`(/v1/[^`]*)`", SOURCE)
    assert len(asked) == 2
    for path in asked:
        concrete = path.replace("${pod}", "a/b").partition("?")[0]
        concrete = re.sub(r"\$\{[^}]*\}", "x", concrete)
        assert any(pattern.fullmatch(concrete) for pattern in patterns), concrete
