"""The two situations that classes are for: a realtime request comes while batch work holds every
seat, or every KV block. One engine at a time, each in a process of its own:

    python situations.py MODEL SITUATION POLICY [--host-gib G] [--then corrupt|abort|reset]

prints a line of JSON: steps to the realtime request's first token, steps in all, a hash of every
answer, and what was swapped.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from rig import Engine

from headway.core.types import ServiceClass
from headway_vllm.classes import PRIORITY
from headway_vllm.pace import Pace
from headway_vllm.settings import Settings

SITUATIONS: dict[str, dict[str, Any]] = {
    "seats": {"max_num_seqs": 4, "num_gpu_blocks_override": 200},
    "blocks": {"max_num_seqs": 32, "num_gpu_blocks_override": 29},
}
BATCH, ARRIVAL_STEP, BATCH_TOKENS, REALTIME_TOKENS = 8, 40, 150, 8
CACHED = {"max_num_seqs": 32, "num_gpu_blocks_override": 29, "enable_prefix_caching": True}


class SteadyPace(Pace):
    """Learns nothing, so that swapping costs less than computing again, whatever the machine."""

    def ended(self, output: object) -> None:
        """Nothing."""


def main() -> None:
    """Run one engine through one situation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("situation", choices=[*SITUATIONS, "cached"])
    parser.add_argument("policy", choices=["headway", "priority", "fcfs"])
    parser.add_argument("--host-gib", type=float, default=1.0)
    parser.add_argument("--then", choices=["corrupt", "abort", "reset"], default="")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    args = parser.parse_args()
    options = SITUATIONS.get(args.situation, CACHED)
    if args.tensor_parallel * args.pipeline_parallel > 1:
        # A pipeline's workers are warmed up only where vLLM compiles.
        options |= {
            "tensor_parallel_size": args.tensor_parallel,
            "pipeline_parallel_size": args.pipeline_parallel,
            "enforce_eager": args.pipeline_parallel == 1,
        }
    engine = Engine(args.model, args.policy, Settings(host_gib=args.host_gib), **options)
    if args.policy == "headway":
        engine.scheduler.pace = SteadyPace()
    preempted = count_preemptions(engine)
    play(engine, args.then)
    found = report(engine, args.policy) | {"preemptions": len(preempted)}
    print(json.dumps(found), flush=True)
    engine.close()


def play(engine: Engine, then: str) -> None:
    """Batch work, then the realtime request. Once KV is swapped out: `corrupt` zeroes it before it
    comes back, `abort` aborts whose it is, `reset` resets the prefix cache."""
    for number in range(BATCH):
        prompt = range(number, number + 60)
        engine.add(f"batch{number}", prompt, BATCH_TOKENS, PRIORITY[ServiceClass.BATCH])
    for _ in range(ARRIVAL_STEP):
        engine.step()
    engine.add("realtime", range(100, 140), REALTIME_TOKENS, PRIORITY[ServiceClass.REALTIME])
    while engine.engine.has_unfinished_requests():
        engine.step()
        if then == "corrupt":
            zero_host_memory()
        elif then and swapped(engine):
            drop(engine, then)
            assert not swapped(engine), "host blocks are still held"
            then = ""


def swapped(engine: Engine) -> int:
    """Host blocks in use."""
    book = engine.scheduler.swap.book
    return int(book.total - book.free)


def drop(engine: Engine, how: str) -> None:
    """Make what is swapped out worthless. vLLM keeps a request under its name and a suffix."""
    if how == "abort":
        names = [kept.rpartition("-")[0] for kept in engine.scheduler.swap.book._saved]
        engine.engine.abort_request(names)
    else:
        engine.engine.reset_prefix_cache(reset_running_requests=True)


def zero_host_memory() -> None:
    """What the worker in this process keeps in host memory."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    with torch.inference_mode():
        for layers in get_kv_transfer_group().host.chunks:
            for layer in layers:
                layer.zero_()


def count_preemptions(engine: Engine) -> list[str]:
    """Grows by the id of each request that is preempted. The scheduler's own tally is emptied
    whenever vLLM asks for its figures, and where they are off."""
    preempted: list[str] = []
    preempt = engine.scheduler._preempt_request

    def noted(request: Any, *args: Any, **kwargs: Any) -> None:
        preempted.append(request.request_id)
        preempt(request, *args, **kwargs)

    engine.scheduler._preempt_request = noted
    return preempted


def report(engine: Engine, policy: str) -> dict[str, Any]:
    """What happened."""
    answers = [engine.ended[name].tokens for name in sorted(engine.ended)]
    found = {
        "policy": policy,
        "ttft_steps": engine.ended["realtime"].ttft_steps,
        "steps": engine.steps,
        "answers": hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16],
        "tokens": sum(len(a) for a in answers),
    }
    if policy == "headway":
        book = engine.scheduler.swap.book
        found |= {
            "saved_tokens": book.saved_tokens,
            "restored_tokens": book.restored_tokens,
            "host_used": book.total - book.free,
        }
    return found


if __name__ == "__main__":
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    main()
