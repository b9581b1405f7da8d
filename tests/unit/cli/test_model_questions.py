"""The script that puts the questions to a model: it calls tools for the model, and judges what it says."""

import json
from typing import Any

import httpx2

from tests.measured.assistants import questions
from tests.measured.assistants.__main__ import Model, asked, judged


def talking(request: httpx2.Request) -> httpx2.Response:
    """A model that asks one tool, and answers with what that said."""
    messages = json.loads(request.content)["messages"]
    said: dict[str, Any] = {"role": "assistant", "content": messages[-1]["content"]}
    if messages[-1]["role"] == "user":
        call = {"id": "1", "type": "function", "function": {"name": "evictions", "arguments": '{"limit": 1}'}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
    return httpx2.Response(200, json={"choices": [{"message": said}]})


async def test_an_answer_that_names_what_the_tool_says_is_right_and_another_is_not() -> None:
    (question, *_) = (
        one for one in questions() if one.ask.startswith("How many evictions") and one.log == "demo-blind"
    )
    async with httpx2.AsyncClient(base_url="http://model/v1/", transport=httpx2.MockTransport(talking)) as http:
        (score,) = await asked(Model(http, "any"), [question])
    assert score.missing == (), score.text
    assert '"position": 1037' in score.text
    assert judged(question, "There were none.").missing == ("8", "8")
