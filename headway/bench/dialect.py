"""How a server is asked: the route, and how it takes a request's priority.

OpenAI's own word is `service_tier`; vLLM has an integer `priority`; many servers have nothing.
"""

from dataclasses import dataclass

from headway.bench.client import Ask
from headway.core.types import ServiceClass
from headway.server.tiers import CLASS_HEADER, Tier

_LEVELS = {ServiceClass.REALTIME: -100, ServiceClass.STANDARD: 0, ServiceClass.BATCH: 100}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server understands.

    model: its name there. endpoint: "completions" or "chat". priority: how it is told a class, by
        OpenAI's "service_tier", vLLM's "priority", Headway's "header", or "none".
    ignore_eos: answers of exactly the length asked for; not every server knows it.
    """

    model: str
    endpoint: str = "completions"
    priority: str = "service_tier"
    ignore_eos: bool = True

    def ask(self, service_class: ServiceClass, prompt: str, answer_tokens: int) -> Ask:
        """A request for a greedy, streamed answer."""
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": answer_tokens,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }
        headers: tuple[tuple[str, str], ...] = ()
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.priority == "service_tier":
            body["service_tier"] = Tier.of(service_class).word
        elif self.priority == "priority":
            body["priority"] = _LEVELS[service_class]
        elif self.priority == "header":
            headers = ((CLASS_HEADER, service_class.label),)
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
            return Ask("/v1/chat/completions", body, headers)
        return Ask("/v1/completions", body | {"prompt": prompt}, headers)
