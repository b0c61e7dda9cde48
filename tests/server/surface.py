"""Servers between them of everything a client can meet, for the official clients."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.engine.types import Generation, GenerationRequest
from headway.errors import OverloadedError
from tests.batches.rig import batch_server
from tests.models.template_files import family
from tests.server.fake_engine import FakeEngine, Script
from tests.server.fuzz import everything
from tests.server.live import BYTES, live_server
from tests.server.test_tools import CALLS, WORDS

HELLO = b"Hello there."


@dataclass
class BusyEngine(FakeEngine):
    """Has no room for the first request, and then for every other one."""

    turned_away: list[GenerationRequest] = field(default_factory=list)

    def submit(self, request: GenerationRequest, limited: bool = True) -> Generation:
        if len(self.turned_away) <= len(self.submitted):
            self.turned_away.append(request)
            raise OverloadedError("Too many wait.", retry_after_s=0.1)
        return super().submit(request, limited)


@contextmanager
def surface(folder: Path) -> Iterator[dict[str, str]]:
    """URLs by what is special about them.

    all: every route, grammars and a template with tools; text is random bytes.
    batches: the Batch API at work. tools: always calls. busy: 429 first.
    broken: fails after three tokens. keyed: wants a key.
    """
    tools = replace(BYTES, codec=WORDS, chat=family("hermes"))
    with ExitStack() as stack:
        enter = stack.enter_context
        servers = {
            "all": enter(everything(folder / "all", "hermes", 512)),
            "batches": enter(batch_server(folder / "batches")).server,
            "tools": enter(
                live_server(FakeEngine(Script(reply=CALLS["hermes"].encode())), model=tools)
            ),
            "busy": enter(live_server(BusyEngine(Script(reply=HELLO)))),
            "broken": enter(live_server(FakeEngine(Script(reply=HELLO, fail_after=3)))),
            "keyed": enter(live_server(FakeEngine(), key="secret")),
        }
        yield {name: server.url for name, server in servers.items()}
