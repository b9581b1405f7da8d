"""The questions put to a model that has the tools of `kai mcp`: how many it answers rightly, and cites.

    python -m tests.measured.assistants --url http://127.0.0.1:11434/v1 --model NAME [--first 20]

The server speaks OpenAI's chat completions, as most do; $MODEL_API_KEY is its key. An answer is right if it has every
expected value in its words. Nothing of this runs in the gate.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from kai_cli.asking.assistant_tools import Tools, server
from kai_cli.sources.source import AnswerSource
from mcp import Client

from tests.measured.assistants import LOGS, Question, log_file, questions

#: Turns in which a model may call tools before its answer counts as missing.
_TURNS = 6
_SYSTEM = (
    "Answer questions about a GPU cluster with the tools. Name every figure, name and reason that is asked for, "
    "exactly as the tools spell it, and the position of the log on which the answer rests."
)


@dataclass(frozen=True, slots=True)
class Score:
    """A model's answer: the question, its text, and what is missing in it."""

    question: Question
    text: str
    missing: tuple[str, ...]


class Model:
    """A model behind OpenAI's chat completions."""

    def __init__(self, http: httpx2.AsyncClient, name: str) -> None:
        """Args:
        http: a client with the base address and the key.
        name: of the model.
        """
        self._http = http
        self._name = name

    async def answer(self, client: Client, question: str) -> str:
        """Return the model's words; it calls tools before."""
        tools = [
            {
                "type": "function",
                "function": {"name": one.name, "description": one.description, "parameters": one.input_schema},
            }
            for one in (await client.list_tools()).tools
        ]
        messages: list[dict[str, Any]] = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
        for _ in range(_TURNS):
            asked = {"model": self._name, "messages": messages, "tools": tools, "temperature": 0}
            response = await self._http.post("chat/completions", json=asked)
            response.raise_for_status()
            said = response.json()["choices"][0]["message"]
            messages.append(said)
            if not said.get("tool_calls"):
                return said.get("content") or ""
            for call in said["tool_calls"]:
                function = call["function"]
                result = await client.call_tool(function["name"], json.loads(function["arguments"] or "{}"))
                text = "".join(getattr(part, "text", "") for part in result.content)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        return ""


def judged(question: Question, text: str) -> Score:
    """Return what is missing in an answer: expected values that its words do not have."""
    wanted = [value for path, value in question.expect.items() if not path.startswith("restsOn")]
    flat = [part for value in wanted for part in (value.values() if isinstance(value, dict) else [value])]
    values = [str(value).removeprefix("len:") for value in flat if not isinstance(value, bool)]
    return Score(question, text, tuple(value for value in values if value.lower() not in text.lower()))


async def asked(model: Model, some: Sequence[Question]) -> list[Score]:
    """Put questions to a model, one after the other."""
    scores = []
    with TemporaryDirectory() as directory:
        for name in LOGS:
            about = [one for one in some if one.log == name]
            if not about:
                continue
            async with Client(server(Tools(AnswerSource(file=log_file(Path(directory), name))))) as client:
                scores += [judged(one, await model.answer(client, one.ask)) for one in about]
    return scores


async def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.measured.assistants")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--first", type=int, default=None)
    given = parser.parse_args()
    headers = {"Authorization": f"Bearer {os.environ.get('MODEL_API_KEY', '')}"}
    try:
        async with httpx2.AsyncClient(base_url=given.url.rstrip("/") + "/", headers=headers, timeout=120) as http:
            scores = await asked(Model(http, given.model), questions()[: given.first])
    except (httpx2.HTTPError, KeyError, json.JSONDecodeError) as error:
        sys.stderr.write(f"{given.url}: does not answer as chat completions do: {error!r}\n")
        return 2
    for score in scores:
        if score.missing:
            print(f"{score.question.ask}\n  missing: {', '.join(score.missing)}\n  said: {score.text[:300]!r}")
    print(f"{sum(not score.missing for score in scores)} of {len(scores)} answers are right")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
