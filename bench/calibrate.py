"""Times steps of the CPU executor and writes them for `headway simulate --calibrate`.

    python bench/calibrate.py MODEL.gguf OUT.json [--threads N] [--name smollm2-135m]

Each case of `step.py` but the sampled one, and a few smaller ones, in seconds of the whole step as
the engine sees it: the least of the repeats, since neighbours on the machine only add time.
"""

import argparse
import json
from pathlib import Path

from step import BLOCK_TOKENS, CASES, MOST_ROWS, Case, run_case

from headway.executors.native import NativeExecutor, NativeOptions
from headway.models.loader import load_model

FURTHER = (
    Case("decode-4@200", 4, 200, reps=30),
    Case("decode-16@300", 16, 300, reps=20),
    Case("prefill-64@0", 1, 0, tokens=64, reps=15),
    Case("prefill-128@256", 1, 256, tokens=128, reps=10),
)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--name", default="smollm2-135m", help="the model's name to the simulator")
    args = parser.parse_args()
    cases = [c for c in (*CASES, *FURTHER) if not c.sampling.temperature]
    options = NativeOptions(
        kv_blocks=max(c.rows * -(-(c.context + c.tokens) // BLOCK_TOKENS) for c in cases),
        max_seqs=MOST_ROWS,
        max_model_len=4096,
        threads=args.threads,
    )
    executor = NativeExecutor(load_model(args.model).weights, options)
    steps = []
    for case in cases:
        seconds = run_case(executor, case)["best"] / 1e3
        steps.append(
            {"rows": case.rows, "tokens": case.tokens, "context": case.context, "seconds": seconds}
        )
        print(f"{case.name:20}{seconds * 1e3:10.3f} ms", flush=True)
    executor.close()
    args.out.write_text(json.dumps({"model": args.name, "steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
