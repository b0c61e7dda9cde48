"""Streamed calls as they go over the wire: deltas add up to the answer that is not streamed."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.server.live import MODEL
from tests.server.test_tools import ARGUMENTS, ASK, CALLS, TIME, WEATHER, server_of

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": ASK, "tools": [WEATHER, TIME]}
ODD = '{"city": "Troms\\u00f8 \\"øst\\" 🌍", "unit": {"nested": [1, {"deep": "]}"}]}}'


@dataclass
class Added:
    """A choice's message, put together as OpenAI documents it; asserts what each delta may hold."""

    message: dict[str, Any] = field(default_factory=lambda: {"content": None})
    finish: str | None = None
    tokens: list[object] = field(default_factory=list)
    pieces: int = 0

    def add(self, choice: dict[str, Any]) -> None:
        assert self.finish is None, "a delta after the last one"
        delta = choice["delta"]
        assert ("role" in delta) is ("role" not in self.message), "the role once, at first"
        for name, value in delta.items():
            if name == "tool_calls":
                (call,) = value
                self._add_call(call)
            elif name == "role":
                self.message["role"] = value
            elif value:
                self.message[name] = (self.message.get(name) or "") + value
        self.tokens += (choice["logprobs"] or {}).get("content") or []
        self.finish = choice["finish_reason"]
        assert not (self.finish and delta), "the end is a delta of its own"

    def _add_call(self, call: dict[str, Any]) -> None:
        calls = self.message.setdefault("tool_calls", [])
        if call["index"] == len(calls):
            assert set(call) == {"index", "id", "type", "function"}
            assert set(call["function"]) == {"name", "arguments"}
            assert call["type"] == "function" and call["id"] and call["function"]["name"]
            calls.append({k: v for k, v in call.items() if k != "index"})
            return
        assert call["index"] == len(calls) - 1, "a call goes on until the next begins"
        assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
        calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        self.pieces += 1


def streamed(http: httpx.Client, body: dict[str, Any]) -> tuple[list[Added], dict[str, Any] | None]:
    """The choices of a stream, and its usage."""
    choices: dict[int, Added] = {}
    usage = None
    with http.stream("POST", PATH, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events.pop() == "[DONE]"
    heads = set()
    for event in map(json.loads, events):
        assert event["object"] == "chat.completion.chunk"
        heads.add((event["id"], event["created"], event["model"]))
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            choices.setdefault(choice["index"], Added()).add(choice)
    assert len(heads) == 1
    return [choices[index] for index in range(len(choices))], usage


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message as it is compared: ids are other ones each time, and an empty text is none."""
    plain = {k: v for k, v in message.items() if k != "refusal"}
    plain["content"] = plain["content"] or None
    calls = [{k: v for k, v in c.items() if k != "id"} for c in plain.get("tool_calls", [])]
    return plain | {"tool_calls": calls}


def hermes(*calls: tuple[str, str]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in calls
    )


ODD_CALLS = hermes(("get_weather", ODD), ("get_time", "{}"), ("get_weather", ARGUMENTS))
ANSWERS = {
    **{name: (name, reply, 2) for name, reply in CALLS.items()},
    "text before": ("hermes", "Let me see. " + CALLS["hermes"], 2),
    "odd arguments": ("hermes", ODD_CALLS, 3),
    "reasoning before": ("qwen3", "<think>\nWhere?\n</think>\n\n" + ODD_CALLS, 3),
    "a stranger's call": ("hermes", hermes(("rm", "{}")), 0),
    "no call": ("hermes", "It is <cold>, I { think }.", 0),
}
"""By what is special: the template's family, what the model says, and how many calls that is."""


@pytest.mark.parametrize("case", ANSWERS)
def test_deltas_add_up_to_the_whole_answer(case: str) -> None:
    name, reply, calls = ANSWERS[case]
    with server_of(name, reply) as (server, _):
        http = server.http()
        for more in ({}, {"n": 3}, {"logprobs": True}, {"stream_options": {"include_usage": True}}):
            body: dict[str, Any] = BODY | more
            choices, usage = streamed(http, body)
            whole = http.post(PATH, json={k: v for k, v in body.items() if k != "stream_options"})
            expected = whole.json()
            assert len(choices) == len(expected["choices"]) == body.get("n", 1)
            for added, choice in zip(choices, expected["choices"], strict=True):
                assert without_ids(added.message) == without_ids(choice["message"])
                assert added.finish == choice["finish_reason"]
                assert added.finish == ("tool_calls" if calls else "stop")
                assert len(added.message.get("tool_calls", [])) == calls
                assert not calls or added.pieces > 5, "arguments come as they are made"
                if body.get("logprobs"):
                    assert added.tokens == choice["logprobs"]["content"]
            ids = [call["id"] for a in choices for call in a.message.get("tool_calls", [])]
            assert len(set(ids)) == len(ids)
            assert usage == (expected["usage"] if "stream_options" in body else None)


@pytest.mark.parametrize("most", [20, 45, 80, 130])
def test_deltas_of_an_answer_that_is_cut_add_up_too(most: int) -> None:
    """Before a call, in its name, in its arguments and in the second one."""
    with server_of("hermes", CALLS["hermes"]) as (server, _):
        body = BODY | {"max_tokens": most}
        (added,), _ = streamed(server.http(), body)
        (choice,) = server.http().post(PATH, json=body).json()["choices"]
    assert without_ids(added.message) == without_ids(choice["message"])
    assert added.finish == choice["finish_reason"] == "length"


def test_deltas_of_one_call_where_calls_are_not_parallel() -> None:
    with server_of("hermes", CALLS["hermes"]) as (server, _):
        (added,), _ = streamed(server.http(), BODY | {"parallel_tool_calls": False})
    (call,) = added.message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    assert added.finish == "tool_calls"
