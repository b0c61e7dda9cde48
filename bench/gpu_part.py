"""One process of bench/gpu.py: some parts, in one arrangement of attention and CUDA graphs.

Each part is in the file at --out as soon as it is there.
"""

import argparse
import faulthandler
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_correct import correct
from gpu_rig import BLOCK, LLAMA_8B, TINY, Placed, Rig, random_weights

from headway.core.plan import BlockCopy, Capacity, StepPlan
from headway.core.types import BlockId, Lane
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.options import TorchOptions
from headway.models.types import ModelConfig

ITL_TARGETS_MS = (20, 30, 40, 60)
PREFILL_CLAIM, TTFT_CLAIM, SWAP_CLAIM = 2.1, 0.55, 5.0
"""What is to be shown or refuted: prefill tokens/s against the best chunk at the same ITL target,
TTFT as a share of its, and bringing a prompt of 1,024 tokens or more back against computing it."""


def steps(rig: Rig, scale: int) -> list[dict[str, float]]:
    """Seconds of steps: decode rows by number and context, prefill chunks by length and place."""
    found = []
    for rows in (1, 8, 32, 64, 128):
        if rows > rig.capacity.max_seqs:
            break
        for context in (128 * scale, 512 * scale):
            if rows * context // BLOCK > rig.capacity.kv_blocks:
                continue
            made = rig.sequences(*[context] * rows)
            seconds = rig.median(partial(rig.decode, made, context))
            found.append({"rows": rows, "context": context, "chunk": 0, "seconds": seconds})
    for chunk in (64 * scale, 256 * scale, 512 * scale):
        for start in (0, 512 * scale):
            made = rig.sequences(start + chunk)
            seconds = rig.median(partial(rig.prefill, made[0], start, chunk))
            found.append({"rows": 0, "context": start, "chunk": chunk, "seconds": seconds})
    return found


def for_simulator(found: list[dict[str, float]]) -> list[dict[str, float]]:
    """The same in the words of `headway simulate --calibrate`."""
    return [
        {
            "rows": s["rows"] or 1,
            "tokens": s["chunk"] or 1,
            "context": s["context"] - (0 if s["chunk"] else 1),
            "seconds": s["seconds"],
        }
        for s in found
    ]


def fitted(found: list[dict[str, float]]) -> dict[str, float]:
    """Least squares on constant, decode rows, decode context, prefill tokens, prefill context."""
    rows = [
        [
            1.0,
            s["rows"],
            s["rows"] * s["context"],
            s["chunk"],
            s["chunk"] * (s["context"] + s["chunk"] / 2),
        ]
        for s in found
    ]
    seconds = np.array([s["seconds"] for s in found])
    weights = 1 / seconds  # relative errors count alike
    terms, *_ = np.linalg.lstsq(np.array(rows) * weights[:, None], seconds * weights, rcond=None)
    errors = np.abs(np.array(rows) @ terms - seconds) / seconds
    names = ("constant_s", "row_s", "row_token_s", "token_s", "token_token_s")
    return {
        **dict(zip(names, terms.tolist(), strict=True)),
        "median_error": float(np.median(errors)),
    }


def swap(rig: Rig, lengths: list[int]) -> dict[str, Any]:
    """A prompt's blocks back from the host, against computing them again in whole chunks."""
    found = []
    for length in lengths:
        made = rig.sequences(length)
        copies = tuple(BlockCopy(b, BlockId(i)) for i, b in enumerate(made[0][1]))
        out_s = rig.run(StepPlan(0, Lane.UNIFIED, swap_out=copies))
        back_s = rig.median(partial(StepPlan, 0, Lane.UNIFIED, swap_in=copies))
        again_s = min(_prompt_s(rig, made[0], length, rig.capacity.max_step_tokens) for _ in "12")
        found.append(
            {
                "tokens": length,
                "swap_out_s": out_s,
                "swap_in_s": back_s,
                "recompute_s": again_s,
                "ratio": again_s / back_s,
            }
        )
    long = [one["ratio"] for one in found if one["tokens"] >= 1024]
    verdict = {"least_ratio": min(long), "claimed": SWAP_CLAIM, "held": min(long) >= SWAP_CLAIM}
    return {"measured": found, "verdict": verdict}


def _prompt_s(rig: Rig, sequence: Placed, length: int, most: int) -> float:
    chunks = [
        rig.chunk(sequence, start, min(most, length - start), False)
        for start in range(0, length, most)
    ]
    return sum(rig.run(StepPlan(0, Lane.UNIFIED, chunks=(chunk,))) for chunk in chunks)


def lanes(rig: Rig, rows: int, context: int, prompt: int, seconds: float) -> dict[str, Any]:
    """Decode rows that go on while one prompt after the other is computed: mixed in one lane by
    chunk size, and on parts of the device by every split. `seconds`: of all of it."""
    chunks = [
        size
        for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192)
        if prompt // 32 <= size <= min(prompt, rig.capacity.max_step_tokens - rows)
    ]
    splits = range(1, rig.capacity.units)
    each_s = min(6.0, seconds / (len(chunks) + len(splits)))
    found: list[dict[str, Any]] = [
        {"chunk": chunk, **_mixed(rig, rows, context, prompt, chunk, each_s)} for chunk in chunks
    ]
    found += [
        {"prefill_units": units, **_apart(rig, rows, context, prompt, units, each_s)}
        for units in splits
    ]
    setting = {"rows": rows, "context": context, "prompt": prompt, "units": rig.capacity.units}
    return {"setting": setting, "measured": found, "verdict": list(verdict(found))}


def _mixed(
    rig: Rig, rows: int, context: int, prompt: int, chunk: int, seconds: float
) -> dict[str, float]:
    made = rig.sequences(*[context] * rows, prompt)
    gaps: list[float] = []
    firsts: list[float] = []
    begin_s, warm = 0.0, False
    while not firsts or time.perf_counter() - begin_s < seconds:
        gaps_now = []
        for start in range(0, prompt, chunk):
            decode = rig.decode(made[:rows], context)
            prefill = rig.chunk(made[rows], start, min(chunk, prompt - start), True)
            gaps_now.append(rig.run(replace(decode, chunks=(*decode.chunks, prefill))))
        if warm:
            gaps += gaps_now
            firsts.append(sum(gaps_now))
        else:  # the first prompt is left out
            warm, begin_s = True, time.perf_counter()
    return _summary(rows, prompt, gaps, firsts, time.perf_counter() - begin_s)


def _apart(
    rig: Rig, rows: int, context: int, prompt: int, units: int, seconds: float
) -> dict[str, float]:
    made = rig.sequences(*[context] * rows, prompt)
    gaps: list[float] = []
    firsts: list[float] = []
    begin_s, submitted_s, warm, running = 0.0, 0.0, False, None
    while not firsts or not gaps or time.perf_counter() - begin_s < seconds:
        if running is None or running.done():
            if running is not None and warm:
                firsts.append(time.perf_counter() - submitted_s)
            elif running is not None:  # the first prompt is left out
                warm, begin_s = True, time.perf_counter()
            chunk = rig.chunk(made[rows], 0, prompt, True)
            submitted_s = time.perf_counter()
            plan = StepPlan(0, Lane.PREFILL, chunks=(chunk,), units=units)
            running = rig.executor.submit(plan, {})
        decode = rig.decode(made[:rows], context)
        units_left = rig.capacity.units - units
        gap_s = rig.run(replace(decode, lane=Lane.DECODE, units=units_left))
        if warm:
            gaps.append(gap_s)
    elapsed_s = time.perf_counter() - begin_s
    if running is not None:
        running.result(300)
    return _summary(rows, prompt, gaps, firsts, elapsed_s)


def _summary(
    rows: int, prompt: int, gaps: list[float], firsts: list[float], elapsed_s: float
) -> dict[str, float]:
    ordered = sorted(gaps)
    prefill, decode = len(firsts) * prompt / elapsed_s, len(gaps) * rows / elapsed_s
    return {
        "prefill_tokens_per_s": prefill,
        "decode_tokens_per_s": decode,
        "ttft_p50_s": statistics.median(firsts),
        "itl_p50_s": statistics.median(ordered),
        "itl_p90_s": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "steps": len(gaps),
        "prompts": len(firsts),
    }


def verdict(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """At each ITL target, which p90 must keep: the chunk and the split with the most prefill tokens
    a second, and what the split has more of. Goodput: tokens of both kinds a second of these."""
    for target_ms in ITL_TARGETS_MS:
        kept = [one for one in found if float(one["itl_p90_s"]) * 1e3 <= target_ms]
        best = {
            kind: max(
                (one for one in kept if name in one),
                key=lambda one: float(one["prefill_tokens_per_s"]),
                default=None,
            )
            for kind, name in (("unified", "chunk"), ("split", "prefill_units"))
        }
        row: dict[str, Any] = {"itl_target_ms": target_ms, **best}
        for kind, one in best.items():
            row[f"{kind}_goodput"] = (
                one["prefill_tokens_per_s"] + one["decode_tokens_per_s"] if one else 0.0
            )
        if best["unified"] and best["split"]:
            faster = best["split"]["prefill_tokens_per_s"] / best["unified"]["prefill_tokens_per_s"]
            sooner = best["split"]["ttft_p50_s"] / best["unified"]["ttft_p50_s"]
            row |= {"prefill_ratio": faster, "ttft_ratio": sooner}
            row |= {"prefill_held": faster >= PREFILL_CLAIM, "ttft_held": sooner <= TTFT_CLAIM}
        yield row


def main() -> None:
    """Run the parts; whatever fails ends the process, what was measured before is written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("--device", "--attention", "--graphs", "--parts"):
        parser.add_argument(name, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--seconds",
        type=float,
        required=True,
        help="until it is ended; the stacks are printed before",
    )
    settings = parser.parse_args()
    end_s = time.monotonic() + settings.seconds
    faulthandler.dump_traceback_later(0.9 * settings.seconds, exit=True)
    gpu = settings.device != "cpu"
    if gpu:
        torch.cuda.set_device(settings.device)
    document: dict[str, Any] = {
        "machine": {
            "device": torch.cuda.get_device_name(settings.device) if gpu else "cpu",
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }
    }

    def keep(name: str, value: object) -> None:
        document[name] = value
        settings.out.write_text(json.dumps(document))

    dtype = "bf16" if gpu else "fp32"
    options = TorchOptions(
        settings.device, dtype, False, attention=settings.attention, graphs=settings.graphs
    )
    parts = settings.parts.split(",")
    if "correct" in parts:
        keep("correct", correct(options))
    if parts == ["correct"]:
        return
    config = LLAMA_8B if gpu else TINY
    prompt, context, rows = (8192, 1024, 64) if gpu else (512, 128, 8)
    capacity = Capacity(
        kv_blocks=_pool_blocks(config, gpu),
        host_blocks=prompt // BLOCK + 1 if gpu else 128,
        block_size=BLOCK,
        max_seqs=128 if gpu else 32,
        max_step_tokens=prompt + rows,
        max_model_len=2 * prompt,
        vocab_size=config.vocab,
    )
    begin_s = time.monotonic()
    executor = TorchExecutor(random_weights(config), capacity, options)
    rig = Rig(executor, repeats=7 if gpu else 3)
    if "steps" in parts:
        measured = steps(rig, 4 if gpu else 1)
        keep(
            "steps",
            {
                "start_s": time.monotonic() - begin_s,
                "model": asdict(config),
                "dtype": dtype,
                "measured": measured,
                "fitted": fitted(measured),
                "for_simulator": for_simulator(measured),
            },
        )
    if "swap" in parts:
        keep("swap", swap(rig, [512, 1024, 2048, 4096, 8192] if gpu else [128, 512, 1024]))
    if "lanes" in parts:
        left_s = end_s - time.monotonic() - 20
        lanes_s = max(1.0, left_s) if gpu else 1.0
        keep("lanes", lanes(rig, rows, context, prompt, lanes_s))
    executor.close()


def _pool_blocks(config: ModelConfig, gpu: bool) -> int:
    """What the measurements need: 128 rows of 2,048 tokens. On a smaller GPU, what a third of
    its free memory holds."""
    if not gpu:
        return 1_024
    block = 2 * config.layers * BLOCK * config.attention.kv_heads * config.attention.head_dim * 2
    free, _ = torch.cuda.mem_get_info()
    return min(16_384, int(free / 3) // block)


if __name__ == "__main__":
    main()
