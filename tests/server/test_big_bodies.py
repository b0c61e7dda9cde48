"""Bodies and heads that are made to take long: refused before they cost the event loop's time."""

import json
import socket
from http.client import HTTPConnection

import pytest
from pydantic import ValidationError

from headway.server.fields import Body
from headway.server.openai_types import MAX_MESSAGES, ChatBody, CompletionBody
from headway.server.protocol import MAX_HEAD_BYTES
from tests.server.fake_engine import FakeEngine
from tests.server.live import MODEL, LiveServer, live_server

USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionBody, {"prompt": [1] * 1000 + ["x"]}),
        (CompletionBody, {"prompt": [True] * 1000}),
        (CompletionBody, {"prompt": [[True] * 1000] * 10}),
        (CompletionBody, {"prompt": "x", "stop_token_ids": ["x"] * 1000}),
        (ChatBody, {"messages": [{}] * 1000}),
        (ChatBody, {"messages": [{"role": "user", "content": [{}] * 1000}]}),
        (ChatBody, {"messages": [USER], "stop": [1] * 1000}),
    ],
)
def test_a_list_is_given_up_at_its_first_bad_member(
    kind: type[Body], fields: dict[str, object]
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps({"model": MODEL, **fields}))
    assert caught.value.error_count() < 10


def test_conversations_have_a_longest() -> None:
    with live_server(FakeEngine()) as server:
        body = {"model": MODEL, "messages": [USER] * (MAX_MESSAGES + 1)}
        answer = server.http().post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert "16,384" in answer.json()["error"]["message"]


def test_an_endless_head_is_cut_off() -> None:
    with live_server(FakeEngine()) as server, connected(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nX-Long: ")
        with pytest.raises(OSError):
            for _ in range(1000):
                sock.sendall(b"a" * MAX_HEAD_BYTES)
        assert server.http().get("/health").status_code == 200


def test_a_long_head_before_a_body_in_pieces_is_taken() -> None:
    body = json.dumps({"model": MODEL, "prompt": "x", "user": "u" * 1_000_000})
    with live_server(FakeEngine()) as server:
        connection = HTTPConnection(server.host, server.port, timeout=10)
        for _ in range(2):  # on one connection
            headers = {"X-Long": "a" * (MAX_HEAD_BYTES - 1000)}
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()
        connection.close()


def connected(server: LiveServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=10)
