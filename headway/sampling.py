"""How answers are chosen, where they end and what they must look like, for callers without HTTP."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.plan import Penalties, Truncation
from headway.core.types import ServiceClass
from headway.engine.types import GenerationRequest, StopConditions
from headway.engine.types import SamplingParams as EngineSampling
from headway.errors import InvalidRequestError
from headway.models.grammars import Grammar
from headway.models.reasoning import Thinking
from headway.server.errors import ApiError

if TYPE_CHECKING:
    from headway.server.constraints import GrammarMaker


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to end.

    temperature: 0 is greedy. top_k: 0 keeps all. top_p, min_p: as fractions of probability.
    max_tokens: most tokens of an answer; None = as many as fit.
    stop: strings that end the answer and are not part of it. stop_token_ids: ids that end it.
    seed: the same seed gives the same answer; None draws one.
    n: answers to each prompt.
    repetition_penalty: 1 is none. presence_penalty, frequency_penalty: 0 is none.
    logit_bias: token id → value added to its logit.
    logprobs: None for none; k for the sampled token's and the k most likely ones'.
    ignore_eos: go on past end of sequence.
    response_format, structured_outputs: what answers must look like, in the words of the HTTP
        fields of these names: `{"type": "json_schema", "json_schema": {"name": …, "schema": …}}`;
        `{"json": SCHEMA}`, `{"regex": …}`, `{"choice": […]}` or `{"grammar": …}`. In a
        conversation, a model that thinks does so first.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int | None = 256
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    n: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    response_format: Mapping[str, object] | None = None
    structured_outputs: Mapping[str, object] | None = None

    def request(self, prompt: Sequence[int], service_class: ServiceClass) -> GenerationRequest:
        """The engine's request for a prompt; its grammar is `grammar`'s."""
        sampling = EngineSampling(
            temperature=self.temperature,
            truncation=Truncation(self.top_k, self.top_p, self.min_p),
            penalties=Penalties(
                self.repetition_penalty, self.presence_penalty, self.frequency_penalty
            ),
            seed=self.seed,
            bias=dict(self.logit_bias or {}),
            logprobs=-1 if self.logprobs is None else self.logprobs,
        )
        stop = StopConditions(
            max_tokens=self.max_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )
        return GenerationRequest(prompt, service_class, sampling, stop, self.n)

    def grammar(self, thinking: Thinking, maker: "GrammarMaker") -> Grammar | None:
        """What the answers must look like; None where they are free. Raises InvalidRequestError."""
        if self.response_format is None and self.structured_outputs is None:
            return None
        # Loading what validates bodies takes a quarter of a second.
        from headway.server.constraints import grammar_of
        from headway.server.openai_types import AnswerForm
        from headway.server.parse import parse_json

        try:
            return grammar_of(parse_json(AnswerForm, self._form()), maker, thinking, None)
        except ApiError as error:
            raise InvalidRequestError(error.message, error.param) from error

    def _form(self) -> bytes:
        fields = {
            "response_format": self.response_format,
            "structured_outputs": self.structured_outputs,
        }
        try:
            return json.dumps(fields).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"not JSON: {error}", "response_format") from error
