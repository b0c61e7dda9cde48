"""The torch executor on a device: is it right, and what do its steps, swaps and lanes cost?

    python bench/gpu.py --device cuda --out FOLDER      # Llama-3.1-8B's shape, random weights
    python bench/gpu.py --device cpu --out FOLDER       # a tiny shape, to see that the script runs

From a source checkout, without network, in less than 10 minutes. Every part is written to
FOLDER/gpu.json as soon as it is measured:

    correct   logits against float64, the conformance suite, swapped against alone
    steps     seconds of a step by rows, context and chunk, and the linear model fitted to them
    swap      a prompt's blocks brought back, against computing them again
    lanes     unified by chunk size against every split: prefill tokens/s and the ITL of a batch

FOLDER/gpu.svg shows the last two. On a GPU, `headway simulate --device h200 --calibrate
FOLDER/steps.json` simulates with the steps measured.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from gpu_plot import plot

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from headway.core.plan import BlockCopy, Capacity, Chunk, Executor, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.torch_.build import options_for
from headway.executors.torch_.executor import TorchExecutor
from headway.models.types import (
    AttentionShape,
    ModelConfig,
    Rope,
    Tensor,
    TensorType,
    Weights,
)
from headway.testing import conformance
from tests.reference import Reference
from tests.tiny import ALL, tiny_weights

LLAMA_8B = ModelConfig(
    "llama", 32, 4096, 14336, 128_256, AttentionShape(32, 8, 128), Rope(500_000.0), 1e-5, 131_072
)
TINY = ModelConfig("llama", 4, 128, 256, 503, AttentionShape(4, 2, 32), Rope(10_000.0), 1e-5, 8_192)
BLOCK = 16


def random_weights(config: ModelConfig) -> Weights:
    """Values that keep activations in range; one random matrix is drawn a shape, rolled for each
    use, since drawing eight billion numbers takes longer than the measurements."""
    rng = np.random.default_rng(0)
    drawn: dict[tuple[int, int], np.ndarray] = {}

    def matrix(rows: int, cols: int) -> Tensor:
        if (rows, cols) not in drawn:
            values = rng.standard_normal((rows, cols), np.float32) / np.sqrt(cols)
            drawn[rows, cols] = values.astype(np.float16)
        data = np.roll(drawn[rows, cols], int(rng.integers(rows)), axis=0)
        return Tensor(TensorType.F16, rows, cols, data.view(np.uint8).reshape(-1))

    def ones(size: int) -> Tensor:
        return Tensor(TensorType.F32, 1, size, np.ones(size, np.float32).view(np.uint8))

    a, hidden = config.attention, config.hidden
    tensors = {"embed": matrix(config.vocab, hidden), "norm": ones(hidden)}
    tensors["head"] = matrix(config.vocab, hidden)
    for i in range(config.layers):
        shapes = {
            "q": (a.heads * a.head_dim, hidden),
            "k": (a.kv_heads * a.head_dim, hidden),
            "v": (a.kv_heads * a.head_dim, hidden),
            "o": (hidden, a.heads * a.head_dim),
            "gate": (config.intermediate, hidden),
            "up": (config.intermediate, hidden),
            "down": (hidden, config.intermediate),
        }
        tensors |= {f"layers.{i}.{name}": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"layers.{i}.{n}": ones(hidden) for n in ("attn_norm", "ffn_norm")}
    return Weights(config, tensors, "random")


class Rig:
    """Sequences on an executor, their blocks given once and for all."""

    def __init__(self, executor: Executor, repeats: int) -> None:
        self.executor = executor
        self.capacity = executor.capacity
        self.repeats = repeats
        self._steps = 0
        self._requests = 0
        self._rng = np.random.default_rng(1)

    def sequences(self, count: int, tokens: int) -> list[tuple[RequestId, list[BlockId]]]:
        """So many, opened, with blocks for so many tokens each; blocks are used anew by each call.
        Their cache is whatever the pool holds: costs don't depend on it."""
        each = -(-(tokens + 1) // BLOCK)
        if count * each > self.capacity.kv_blocks:
            raise SystemExit(f"{count} sequences of {tokens} tokens need {count * each} blocks")
        made = []
        for i in range(count):
            self._requests += 1
            table = [BlockId(i * each + j) for j in range(each)]
            made.append((RequestId(self._requests), table))
        opens = tuple(Open(name, [1], SamplingSpec()) for name, _ in made)
        self.run(StepPlan(0, Lane.UNIFIED, opens))
        return made

    def chunk(
        self, sequence: tuple[RequestId, list[BlockId]], start: int, count: int, sample: bool
    ) -> Chunk:
        """Random tokens at a place."""
        name, table = sequence
        tokens = self._rng.integers(0, self.capacity.vocab_size, count).tolist()
        return Chunk(name, tokens, start, table, len(table), sample)

    def run(self, plan: StepPlan) -> float:
        """Seconds of a step, copies included."""
        self._steps += 1
        timing = self.executor.submit(replace(plan, step=self._steps), {}).result(300).timing
        return timing.copy_out_s + timing.copy_in_s + timing.compute_s

    def median(self, plan: Callable[[], StepPlan]) -> float:
        """Seconds of a step like this, the first one left out."""
        self.run(plan())
        return statistics.median(self.run(plan()) for _ in range(self.repeats))


def correct(device: str, dtype: str) -> dict[str, object]:
    """Tiny models: logits against float64, and the conformance suite in float32 with tiles."""
    errors = {}
    for name, tiny in ALL.items():
        weights = tiny_weights(tiny)
        ids = list(range(1, 40))
        executor = _executor(weights, _tiny_capacity(), device, "fp32", invariant=True)
        spec = SamplingSpec(logprobs=weights.config.vocab)
        blocks = [BlockId(i) for i in range(3)]
        chunk = Chunk(RequestId(0), ids, 0, blocks, 3, True)
        plan = StepPlan(0, Lane.UNIFIED, (Open(RequestId(0), ids, spec),), chunks=(chunk,))
        found = executor.submit(plan, {}).result(300).sampled[0].logprobs
        executor.close()
        assert found is not None
        got = np.array([value for _, value in sorted(found.top)])
        row = Reference(weights, quantised=False).forward(ids)[-1]
        want = row - row.max() - np.log(np.exp(row - row.max()).sum())
        errors[name] = float(np.abs(got - want).max())
    failed = []
    for check in (*conformance.CHECKS, conformance.check_masks):
        try:
            check(
                lambda: _executor(tiny_weights(), _tiny_capacity(), device, "fp32", invariant=True)
            )
        except AssertionError as error:
            failed.append(f"{check.__name__}: {error}")
    return {"logprob_error": errors, "conformance": len(conformance.CHECKS) + 1, "failed": failed}


def _tiny_capacity() -> Capacity:
    return Capacity(32, 8, BLOCK, 4, 80, 128, 1)


def _executor(
    weights: Weights, capacity: Capacity, device: str, dtype: str, invariant: bool
) -> TorchExecutor:
    return TorchExecutor(
        weights, capacity, replace(options_for(device, dtype), invariant=invariant)
    )


def steps(rig: Rig, scale: int) -> list[dict[str, float]]:
    """Seconds of steps: decode rows by number and context, prefill chunks by length and place."""
    found = []
    for rows in (1, 8, 32, 64, 128):
        for context in (128 * scale, 512 * scale):
            if rows * (context // BLOCK + 1) > rig.capacity.kv_blocks:
                continue
            made = rig.sequences(rows, context)
            seconds = rig.median(lambda made=made, context=context: _decode(rig, made, context))
            found.append({"rows": rows, "context": context, "chunk": 0, "seconds": seconds})
    for chunk in (64 * scale, 256 * scale, 512 * scale):
        for start in (0, 512 * scale):
            made = rig.sequences(1, start + chunk)
            seconds = rig.median(
                lambda made=made, start=start, chunk=chunk: StepPlan(
                    0, Lane.UNIFIED, chunks=(rig.chunk(made[0], start, chunk, True),)
                )
            )
            found.append({"rows": 0, "context": start, "chunk": chunk, "seconds": seconds})
    return found


def _decode(rig: Rig, made: list[tuple[RequestId, list[BlockId]]], context: int) -> StepPlan:
    chunks = tuple(rig.chunk(one, context - 1, 1, True) for one in made)
    return StepPlan(0, Lane.UNIFIED, chunks=chunks)


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


def swap(rig: Rig, lengths: list[int]) -> list[dict[str, float]]:
    """A prompt's blocks back from the host, against computing them again in whole chunks."""
    found = []
    for length in lengths:
        made = rig.sequences(1, length)
        copies = tuple(BlockCopy(b, BlockId(i)) for i, b in enumerate(made[0][1]))
        rig.run(StepPlan(0, Lane.UNIFIED, swap_out=copies))
        back_s = rig.median(lambda copies=copies: StepPlan(0, Lane.UNIFIED, swap_in=copies))
        most = rig.capacity.max_step_tokens
        begin_s = time.perf_counter()
        for start in range(0, length, most):
            count = min(most, length - start)
            rig.run(StepPlan(0, Lane.UNIFIED, chunks=(rig.chunk(made[0], start, count, False),)))
        again_s = time.perf_counter() - begin_s
        found.append({"tokens": length, "swap_in_s": back_s, "recompute_s": again_s})
    return found


def lanes(rig: Rig, rows: int, context: int, seconds: float) -> Iterator[dict[str, object]]:
    """Decode rows that go on while one prompt after the other is computed: mixed in one lane by
    chunk size, and on parts of the device by every split."""
    prompt = min(2 * context, rig.capacity.max_step_tokens)
    for chunk in (256, 512, 1024, 2048, 4096, 8192):
        if chunk <= rig.capacity.max_step_tokens - rows:
            yield {"lanes": "unified", "chunk": chunk, **_mixed(rig, rows, context, chunk, seconds)}
    for units in range(1, rig.capacity.units):
        yield {
            "lanes": f"{units} of {rig.capacity.units} units prefill",
            **_apart(rig, rows, context, prompt, units, seconds),
        }


def _mixed(rig: Rig, rows: int, context: int, chunk: int, seconds: float) -> dict[str, float]:
    made = rig.sequences(rows + 1, max(context, chunk))
    gaps, done, begin_s = [], 0, time.perf_counter()
    while time.perf_counter() - begin_s < seconds or len(gaps) < 3:
        decode = _decode(rig, made[:rows], context)
        prefill = rig.chunk(made[rows], 0, chunk, True)
        gaps.append(rig.run(replace(decode, chunks=(*decode.chunks, prefill))))
        done += chunk
    return _summary(done / (time.perf_counter() - begin_s), gaps)


def _apart(
    rig: Rig, rows: int, context: int, prompt: int, units: int, seconds: float
) -> dict[str, float]:
    made = rig.sequences(rows + 1, max(context, prompt))
    gaps, done, begin_s = [], 0, time.perf_counter()
    running = None
    while time.perf_counter() - begin_s < seconds or len(gaps) < 3:
        if running is None or running.done():
            done += prompt if running is not None else 0
            plan = StepPlan(0, Lane.PREFILL, chunks=(rig.chunk(made[rows], 0, prompt, True),))
            running = rig.executor.submit(replace(plan, units=units), {})
        decode = _decode(rig, made[:rows], context)
        units_left = rig.capacity.units - units
        gaps.append(rig.run(replace(decode, lane=Lane.DECODE, units=units_left)))
    elapsed_s = time.perf_counter() - begin_s
    if running is not None:
        running.result(300)
    return _summary(done / elapsed_s, gaps)


def _summary(rate: float, gaps: list[float]) -> dict[str, float]:
    ordered = sorted(gaps)
    return {
        "prefill_tokens_per_s": rate,
        "itl_p50_s": statistics.median(ordered),
        "itl_p90_s": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "steps": len(gaps),
    }


def verdict(found: list[dict[str, object]]) -> list[dict[str, object]]:
    """At each ITL target: the best chunk and the best split that keep it, and their ratio."""
    rows = []
    for target_ms in (20, 30, 40, 60):
        kept = [one for one in found if float(one["itl_p90_s"]) * 1e3 <= target_ms]
        best = {
            kind: max(
                (float(o["prefill_tokens_per_s"]) for o in kept if ("chunk" in o) == mixed),
                default=0.0,
            )
            for kind, mixed in (("unified", True), ("split", False))
        }
        ratio = best["split"] / best["unified"] if best["unified"] else None
        rows.append({"itl_target_ms": target_ms, **best, "split_to_unified": ratio})
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each arrangement of lanes")
    settings = parser.parse_args()
    settings.out.mkdir(parents=True, exist_ok=True)
    gpu = settings.device != "cpu"
    config, dtype = (LLAMA_8B, "bf16") if gpu else (TINY, "fp32")
    scale = 4 if gpu else 1
    document: dict[str, object] = {
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "torch": torch.__version__,
        "model": asdict(config),
        "dtype": dtype,
    }

    def keep(name: str, value: object) -> None:
        document[name] = value
        (settings.out / "gpu.json").write_text(json.dumps(document, indent=1))
        print(f"{name}: {json.dumps(value)[:300]}", flush=True)

    keep("correct", correct(settings.device, dtype))
    most = 8192 + 256 if gpu else 1024
    capacity = Capacity(
        kv_blocks=24_576 if gpu else 4_096,
        host_blocks=1_024 if gpu else 512,
        block_size=BLOCK,
        max_seqs=256,
        max_step_tokens=most,
        max_model_len=16_384 if gpu else 4_096,
        vocab_size=config.vocab,
    )
    executor = _executor(random_weights(config), capacity, settings.device, dtype, invariant=False)
    rig = Rig(executor, repeats=7 if gpu else 3)
    measured = steps(rig, scale)
    keep("steps", measured)
    keep("model_of_steps", fitted(measured))
    (settings.out / "steps.json").write_text(
        json.dumps({"model": "llama-3.1-8b", "steps": for_simulator(measured)}, indent=1)
    )
    lengths = [512, 1024, 2048, 4096, 8192] if gpu else [128, 512, 1024]
    keep("swap", swap(rig, lengths))
    keep("lanes", list(lanes(rig, 64 if gpu else 8, 1024 if gpu else 128, settings.seconds)))
    keep("verdict", verdict(document["lanes"]))
    executor.close()
    (settings.out / "gpu.svg").write_text(plot(document))


if __name__ == "__main__":
    main()
