"""Batch jobs through stops and starts of the server: every line is answered, once."""

import asyncio
import json
import random
import time
from typing import Any

import httpx

from tests.soak.traffic import Ledger, LostError, Phase

_URL = "/v1/completions"
_POLL_S = 0.25
_JOB_S = 180.0
"""After which a job counts as lost."""


class Jobs:
    """One client that submits a job after the other, and cancels some."""

    def __init__(self, url: str, ledger: Ledger, seed: int) -> None:
        self._ledger = ledger
        self._rng = random.Random(seed)
        self._http = httpx.AsyncClient(
            base_url=url, timeout=30, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def client(self, until: asyncio.Event) -> None:
        """Jobs until told to stop; the last one is waited for."""
        try:
            while not until.is_set():
                outcome = await self._job()
                self._ledger.outcomes["batch job", outcome] += 1
        except (LostError, ValueError, KeyError) as error:
            self._ledger.outcomes["batch job", "lost"] += 1
            self._ledger.faults.append(f"batch job: {type(error).__name__}: {error}")
        finally:
            await self._http.aclose()

    async def _job(self) -> str:
        lines = self._lines(self._rng.randrange(5, 40))
        file = {"file": ("in.jsonl", "\n".join(lines))}
        uploaded = await self._sure("POST", "/v1/files", files=file, data={"purpose": "batch"})
        order = {"input_file_id": uploaded["id"], "endpoint": _URL, "completion_window": "24h"}
        job = await self._sure("POST", "/v1/batches", json=order)
        cancelled = self._rng.random() < 0.25
        if cancelled:
            await asyncio.sleep(self._rng.random())
            # 409 where it has ended before.
            await self._sure("POST", f"/v1/batches/{job['id']}/cancel", fine=(200, 409))
        job = await self._ended(job["id"])
        if job["status"] != "completed" and not (cancelled and job["status"] == "cancelled"):
            raise LostError(f"a job ended as {job['status']}")
        await self._check(job, lines)
        return str(job["status"])

    def _lines(self, count: int) -> list[str]:
        return ["{broken" if i % 7 == 5 else self._line(i) for i in range(count)]

    def _line(self, number: int) -> str:
        ids = [self._rng.randrange(20, 260) for _ in range(self._rng.randrange(3, 60))]
        body = {"model": "tiny", "prompt": ids, "max_tokens": 2 + number, "ignore_eos": True}
        if number % 7 == 3:
            body["temperature"] = 9
        line = {"custom_id": f"line-{number}", "method": "POST", "url": _URL, "body": body}
        return json.dumps(line)

    async def _ended(self, id: str) -> dict[str, Any]:
        end_s = time.monotonic() + _JOB_S
        while time.monotonic() < end_s:
            job = await self._sure("GET", f"/v1/batches/{id}")
            if job["status"] in ("completed", "cancelled", "failed", "expired"):
                return job
            await asyncio.sleep(_POLL_S)
        raise LostError(f"a job is {job['status']} after {_JOB_S:.0f} s: {job['request_counts']}")

    async def _check(self, job: dict[str, Any], lines: list[str]) -> None:
        good = await self._results(job["output_file_id"])
        bad = await self._results(job["error_file_id"])
        if job["status"] == "cancelled" and job["in_progress_at"] is None:
            lines = []  # cancelled while it was being validated: no line of it was taken up
        numbers = sorted(int(result["id"].rpartition("_")[2]) for result in good + bad)
        if numbers != list(range(1, len(lines) + 1)):
            raise LostError(f"{len(lines)} lines were answered as {numbers}")
        counts = job["request_counts"]
        if (counts["total"], counts["completed"]) != (len(lines), len(good)):
            raise LostError(f"counts {counts} of {len(good)} good and {len(bad)} bad lines")
        wrong = sum(number % 7 in (3, 5) for number in range(len(lines)))
        if job["status"] == "completed" and len(bad) != wrong:
            raise LostError(f"{len(bad)} bad lines of {wrong}: {bad}")

    async def _results(self, id: str | None) -> list[dict[str, Any]]:
        if id is None:
            return []
        text = await self._sure_text("GET", f"/v1/files/{id}/content")
        return [json.loads(line) for line in text.splitlines()]

    async def _sure(self, method: str, path: str, **sent: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self._sure_text(method, path, **sent))
        return answer

    async def _sure_text(
        self, method: str, path: str, fine: tuple[int, ...] = (200,), **sent: Any
    ) -> str:
        """The answer, asked for again while the server is stopping or gone."""
        while True:
            began = self._ledger.phase
            try:
                answer = await self._http.request(method, path, **sent)
                if answer.status_code in fine:
                    return answer.text
                if answer.status_code != 503 or self._ledger.phase is Phase.UP:
                    raise LostError(f"{method} {path}: {answer.status_code}: {answer.text[:200]}")
            except httpx.TransportError as error:
                if began is Phase.UP:
                    raise LostError(f"{method} {path}: {error!r}") from error
            await asyncio.sleep(_POLL_S)
