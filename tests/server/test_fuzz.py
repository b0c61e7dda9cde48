"""A short run of what `make fuzz-http` does."""

from pathlib import Path

from tests.server.fuzz import everything, fuzz


def test_cases_from_our_own_description_find_no_fault(tmp_path: Path) -> None:
    with everything(tmp_path) as server:
        tally = fuzz(server, cases=120, seed=1)
    answered = {name.split()[-1] for name in tally}
    assert {"200", "400", "404"} <= answered
    assert any(name.startswith("POST /v1/chat/completions 200") for name in tally)
