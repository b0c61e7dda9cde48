"""`/tokenize` and `/detokenize`, in vLLM's shapes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, JsonValue
from starlette.responses import JSONResponse, Response

from headway.server.answer_types import DetokenizeAnswer, TokenizeAnswer
from headway.server.errors import bad_request
from headway.server.fields import Body, Neutral
from headway.server.model import ServedModel
from headway.server.openai_types import Messages, Tools
from headway.server.parse import parse_json, read_body
from headway.server.translate import template_variables, turns_of

Endpoint = Callable[[Request], Awaitable[Response]]

TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"


class TokenizeBody(Body):
    """POST /tokenize: a text or a conversation, of which exactly one is given.

    add_special_tokens: put beginning of sequence first if the model is used so; by default for a
    text only, since chat templates write it themselves.
    """

    unsupported: ClassVar[Mapping[str, Neutral]] = {
        "chat_template": (),
        "continue_final_message": (False,),
        "mm_processor_kwargs": ({},),
    }

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize. An id that the vocabulary leaves out has no text."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]


TOKEN_BODIES: dict[str, type[Body]] = {
    TOKENIZE_PATH: TokenizeBody,
    DETOKENIZE_PATH: DetokenizeBody,
}
"""What is posted where."""


@dataclass(frozen=True, slots=True)
class TokenService:
    """The two endpoints."""

    model: ServedModel
    max_body_bytes: int

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        body = parse_json(TokenizeBody, await read_body(request, self.max_body_bytes))
        self._check_model(body.model)
        return await asyncio.to_thread(self._tokenized, body)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        body = parse_json(DetokenizeBody, await read_body(request, self.max_body_bytes))
        self._check_model(body.model)
        return JSONResponse({"prompt": await asyncio.to_thread(self._text, body.tokens)})

    def _check_model(self, name: str | None) -> None:
        if name is not None:
            self.model.names.resolve(name)

    def _tokenized(self, body: TokenizeBody) -> Response:
        """The answer, written too: of a long text that takes as long as the tokens do."""
        ids = self._ids(body)
        strings = [self._text([token]) for token in ids] if body.return_token_strs else None
        return JSONResponse(
            {
                "count": len(ids),
                "max_model_len": self.model.max_model_len,
                "tokens": list(ids),
                "token_strs": strings,
            }
        )

    def _ids(self, body: TokenizeBody) -> Sequence[int]:
        if (body.prompt is None) is (body.messages is None):
            raise bad_request("One of 'prompt' and 'messages' is wanted.", "prompt")
        special = body.add_special_tokens
        text = self._rendered(body) if body.prompt is None else body.prompt
        return self.model.tokens(text, body.prompt is not None if special is None else special)

    def _rendered(self, body: TokenizeBody) -> str:
        chat = self.model.tool_format() if body.tools else self.model.chat_format()
        variables = template_variables(body.chat_template_kwargs, body.tools, self.model)
        opened = body.add_generation_prompt is not False
        return chat.render(turns_of(body.messages or [], self.model), opened, **variables)

    def _text(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.model.codec.token_bytes, tokens)).decode("utf-8", "replace")


def build_token_router(service: TokenService) -> APIRouter:
    """The routes."""
    router = APIRouter()
    routes: tuple[tuple[str, Endpoint, type[BaseModel]], ...] = (
        (TOKENIZE_PATH, service.tokenize, TokenizeAnswer),
        (DETOKENIZE_PATH, service.detokenize, DetokenizeAnswer),
    )
    for path, endpoint, answer in routes:
        router.add_api_route(path, endpoint, methods=["POST"], responses={200: {"model": answer}})
    return router
