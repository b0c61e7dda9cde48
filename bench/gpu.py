"""The torch executor on a device: is it right, and what do its steps, swaps and lanes cost?

    python bench/gpu.py --device cuda --out FOLDER      # Llama-3.1-8B's shape, random weights
    python bench/gpu.py --device cpu --out FOLDER       # a tiny shape, to see that the script runs

From a source checkout, without network, in less than 10 minutes. Each arrangement of attention and
CUDA graphs has a process of its own, since an error on a GPU ends whatever its process might do:

    correct   tiny models: logits against float64, the conformance suite, attention by itself
    steps     seconds of a step by rows, context and chunk, and the linear model fitted to them
    swap      a prompt's blocks brought back, against computing them again
    lanes     unified by chunk size against every split: prefill tokens/s, TTFT, ITL, goodput

`correct` comes first, for every arrangement; the fastest that is right is measured whole, then the
others' steps, to compare. --graphs and --attention leave only those that are named. What was
measured is in FOLDER/gpu.json after each part, failures with their reason; `complete` says whether
there was none. FOLDER/gpu.svg shows swaps and lanes. On a GPU, `headway simulate --device h200
--calibrate FOLDER/steps.json` simulates with the steps measured.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_plot import plot

PARTS = ("steps", "swap", "lanes")
CORRECT, MEASURED, STEPS = 0.25, 0.45, 0.15
"""What a process may take of all the time: one that checks (Triton compiles in it), one that
measures everything, and one that measures steps."""
PART = Path(__file__).with_name("gpu_part.py")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How attention is computed, and whether decode steps are padded and recorded."""

    attention: str
    graphs: str

    @property
    def name(self) -> str:
        """A key of the document."""
        return f"{self.attention}, graphs {self.graphs}"


# The fastest first, as far as one can tell without a GPU.
ARRANGEMENTS = (
    Arrangement("paged", "on"),
    Arrangement("paged", "off"),
    Arrangement("gathered", "off"),
    Arrangement("gathered", "on"),
)


@dataclass(slots=True)
class Run:
    """What has been found so far, and the time that is left."""

    out: Path
    device: str
    limit_s: float
    end_s: float
    document: dict[str, Any] = field(default_factory=dict)

    def keep(self, section: str, name: str, value: object) -> None:
        """Write it down at once."""
        self.document.setdefault(section, {})[name] = value
        self.save()
        print(f"{section}, {name}: {json.dumps(value)[:240]}", flush=True)

    def save(self) -> None:
        """The document as it stands; never half a file."""
        fresh = self.out / "gpu.json.part"
        fresh.write_text(json.dumps(self.document, indent=1))
        fresh.replace(self.out / "gpu.json")

    @property
    def left_s(self) -> float:
        """Seconds."""
        return self.end_s - time.monotonic()

    def child(self, arrangement: Arrangement, parts: list[str], limit_s: float) -> dict[str, Any]:
        """Parts in a process of their own: what it wrote, with `error` if it did not end well."""
        target = self.out / "part.json"
        target.unlink(missing_ok=True)
        limit_s = min(limit_s, self.left_s)
        command = [sys.executable, str(PART), "--device", self.device, "--out", str(target)]
        command += ["--attention", arrangement.attention, "--graphs", arrangement.graphs]
        command += ["--parts", ",".join(parts), "--seconds", f"{limit_s:.0f}"]
        error = None
        if limit_s < 5:
            error = "no time was left"
        else:
            try:
                done = subprocess.run(
                    command, timeout=limit_s, stderr=subprocess.PIPE, text=True, check=False
                )
                said = done.stderr.strip()[-2000:]
                error = f"exit {done.returncode}: {said}" if done.returncode else None
            except subprocess.TimeoutExpired:
                error = f"not done within {limit_s:.0f} s"
        found = json.loads(target.read_text()) if target.exists() else {}
        target.unlink(missing_ok=True)
        return found | ({"error": error} if error else {})


def arrangements(device: str, attention: str, graphs: str) -> list[Arrangement]:
    """Those to try: on a CPU without kernels, on a GPU without those that would gather the longest
    sequence for every row of a recorded step."""
    gpu = device != "cpu"
    found = []
    for one in ARRANGEMENTS:
        there = one.attention == "gathered" or (gpu and find_spec("triton") is not None)
        wanted = attention in ("auto", one.attention) and graphs in ("auto", one.graphs)
        named = "auto" not in (attention, graphs)
        if there and wanted and (named or not (gpu and one == Arrangement("gathered", "on"))):
            found.append(one)
    return found


def check(run: Run, some: list[Arrangement]) -> list[Arrangement]:
    """Which of them are right."""
    right = []
    for arrangement in some:
        found = run.child(arrangement, ["correct"], CORRECT * run.limit_s)
        run.keep("correct", arrangement.name, found.get("correct", {}) | _error(found))
        if not _error(found) and not found["correct"]["failed"]:
            right.append(arrangement)
    return right


def measure(run: Run, right: list[Arrangement]) -> None:
    """Everything on the first that can, steps on all."""
    missing = list(PARTS)
    for arrangement in right:
        parts = ["steps", *(part for part in missing if part != "steps")]
        share = MEASURED if missing else STEPS
        found = run.child(arrangement, parts, share * run.limit_s)
        for part in parts:
            if part in found:
                run.keep(part, arrangement.name, found[part])
                missing = [name for name in missing if name != part]
        if _error(found):
            run.keep("failed", arrangement.name, found["error"])
        if "machine" in found:
            run.document["machine"] = found["machine"]
    for part in missing:
        run.keep("failed", part, "measured in no arrangement")


def for_simulator(run: Run) -> None:
    """What `headway simulate --calibrate` takes, of the first arrangement measured; the shape as a
    config.json beside it."""
    steps = run.document.get("steps", {})
    if not steps:
        return
    first = next(iter(steps.values()))
    model = first["model"]
    attention = model["attention"]
    config = {
        "model_type": "llama",
        "num_hidden_layers": model["layers"],
        "hidden_size": model["hidden"],
        "intermediate_size": model["intermediate"],
        "vocab_size": model["vocab"],
        "num_attention_heads": attention["heads"],
        "num_key_value_heads": attention["kv_heads"],
        "head_dim": attention["head_dim"],
        "max_position_embeddings": model["max_context"],
        "rms_norm_eps": model["norm_eps"],
        "rope_theta": model["rope"]["theta"],
        "hidden_act": "silu",
    }
    shape = run.out / "config.json"
    shape.write_text(json.dumps(config, indent=1))
    content = {"model": str(shape.resolve()), "steps": first["for_simulator"]}
    (run.out / "steps.json").write_text(json.dumps(content, indent=1))


def _error(found: dict[str, Any]) -> dict[str, Any]:
    return {"error": found["error"]} if "error" in found else {}


def main() -> int:
    """Measure and write; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--attention", choices=("auto", "paged", "gathered"), default="auto")
    parser.add_argument("--graphs", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds, of all of it")
    settings = parser.parse_args()
    settings.out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + settings.limit
    run = Run(settings.out, settings.device, settings.limit, end_s)
    run.document |= {"python": platform.python_version(), "complete": False}
    some = arrangements(settings.device, settings.attention, settings.graphs)
    right = check(run, some)
    measure(run, right)
    for_simulator(run)
    (run.out / "gpu.svg").write_text(plot(run.document))
    run.document["complete"] = bool(some) and right == some and "failed" not in run.document
    run.document["seconds"] = settings.limit - run.left_s
    run.save()
    print(f"complete: {run.document['complete']}, in {run.document['seconds']:.0f} s", flush=True)
    return 0 if run.document["complete"] else 1


if __name__ == "__main__":
    sys.exit(main())
