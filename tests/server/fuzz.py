"""Cases made from our own OpenAPI document against a live server, all of its routes: no answer of
status 5xx, none that the document doesn't describe, no request that hangs.

python -m tests.server.fuzz --cases 10000
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headway.batches.desk import BatchDesk
from headway.models.grammar_trial import GrammarTrial
from headway.models.grammars import GrammarCompiler
from headway.server.batch_routes import BatchService, build_batch_router
from headway.server.model import ServedModel
from headway.server.routes import BODIES
from headway.server.tiers import ModelNames
from headway.testing import make_capacity
from headway.testing.text import ByteTokenizer
from tests.batches.rig import make_engine
from tests.engine.helpers import EOS, running
from tests.models.template_files import family
from tests.server.live import MODEL, LiveServer, eventually, live_server

TIMEOUT_S = 60.0
"""After which a request counts as one that hangs."""

_LEAST_ROUTES = 18
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@contextmanager
def everything(
    folder: Path, template: str = "qwen3", max_model_len: int = 256
) -> Iterator[LiveServer]:
    """A server with every route, on an engine that answers at once; nothing may be left in it.

    template: of a family; Qwen3's thinks, which random text may begin and never end.
    """
    tokenizer = ByteTokenizer()
    capacity = make_capacity(vocab_size=300, max_model_len=max_model_len)
    desk = BatchDesk(folder)
    words = tokenizer, 300, {EOS}
    grammars = GrammarCompiler(*words, GrammarTrial(*words))
    with running(make_engine(capacity, words=tokenizer)) as rig, closing(grammars):
        model = ServedModel(
            ModelNames(MODEL),
            tokenizer,
            family(template),
            rig.engine.max_model_len,
            created=1,
            grammars=grammars,
        )
        try:
            with live_server(
                rig.engine,
                model=model,
                batches=lambda gate: build_batch_router(BatchService(desk, gate, list(BODIES))),
            ) as server:
                yield server
                eventually(rig.idle, 20)
        finally:
            desk.close()


def fuzz(server: LiveServer, cases: int, seed: int) -> Counter[str]:
    """Send at least this many cases; what was answered, by route and status. Raises on the first
    fault."""
    load_all_checks()
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    if len(operations) < _LEAST_ROUTES:
        raise AssertionError("the document has lost routes")
    tally: Counter[str] = Counter()
    rng = random.Random(seed)
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    weights = [8 if operation.path in BODIES else 1 for operation in operations]
    with requests.Session() as session:
        while (left := cases - tally.total()) > 0:
            for operation, weight in zip(operations, weights, strict=True):
                share = max(1, left * weight // sum(weights) // len(modes))
                for mode in modes:
                    try:
                        strategy = operation.as_strategy(generation_mode=mode)
                        _run(strategy, share, rng, session, server.url, tally)
                    except hypothesis.errors.Unsatisfiable:
                        continue  # nothing about a route without parameters can be wrong
    return tally


def _run(
    strategy: st.SearchStrategy[Any],
    share: int,
    rng: random.Random,
    session: requests.Session,
    url: str,
    tally: Counter[str],
) -> None:
    @hypothesis.seed(rng.getrandbits(32))
    @hypothesis.settings(
        max_examples=share,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategy, served=st.booleans())
    def send(case: Any, served: bool) -> None:
        if served and isinstance(case.body, dict):
            _make_serious(case.body)
        response = case.call(base_url=url, session=session, timeout=TIMEOUT_S)
        tally[f"{case.method} {case.operation.path} {response.status_code}"] += 1
        timed = isinstance(case.body, dict) and "timeout" in case.body
        late = timed and response.status_code == 504
        skipped = [not_a_server_error] if late else []  # it was asked to be
        case.validate_response(response, checks=_CHECKS, excluded_checks=skipped)

    send()


def _make_serious(body: dict[str, Any]) -> None:
    """What a schema can't say: else few would get beyond the model's name."""
    body["model"] = MODEL
    turns = body.get("messages")
    for turn in turns if isinstance(turns, list) else ():
        calls = turn.get("tool_calls") if isinstance(turn, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                call["function"]["arguments"] = "{}"


def main() -> int:
    """Run, and print what was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, everything(Path(folder)) as server:
        tally = fuzz(server, settings.cases, settings.seed)
    for name, count in sorted(tally.items()):
        print(f"{count:7,}  {name}")
    print(f"{tally.total():,} cases in {time.monotonic() - started_s:.0f} s: no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
