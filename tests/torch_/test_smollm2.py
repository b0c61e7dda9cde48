"""The embedded model on torch: next to the CPU executor, and answering over HTTP."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

from headway.core.plan import Chunk, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.options import TorchOptions
from headway.models.loader import load_model
from headway.testing import make_capacity
from tests.native.helpers import bench

TEXT = "The river rises in the hills above the town, where rain falls on two hundred days"


def test_log_probabilities_are_near_the_cpu_executors(smollm2_path: Path) -> None:
    """Cosine of the logits at least 0.999; the same first choice where the margin is wider than
    what int8 activations and half-precision keys and values cost."""
    model = load_model(smollm2_path)
    weights, ids = model.weights, list(model.tokenizer.encode(TEXT, False))
    vocab = weights.config.vocab
    torch = TorchExecutor(
        weights,
        make_capacity(kv_blocks=8, max_seqs=1, max_step_tokens=64, max_model_len=128),
        TorchOptions(invariant=False),
    )
    blocks, spec = [BlockId(0), BlockId(1)], SamplingSpec(logprobs=vocab)
    chunk = Chunk(RequestId(0), ids, 0, blocks, 2, True)
    plan = StepPlan(0, Lane.UNIFIED, (Open(RequestId(0), ids, spec),), chunks=(chunk,))
    sampled = torch.submit(plan, {}).result(120).sampled[0]
    torch.close()
    assert sampled.logprobs is not None
    exact = np.empty(vocab)
    for token, logprob in sampled.logprobs.top:
        exact[token] = logprob
    with bench(weights) as it:
        run = it.run(ids)
        rounded = it.step((run, len(ids))).logits[0].astype(np.float64)
    exact -= exact.mean()
    rounded -= rounded.mean()
    cosine = exact @ rounded / np.linalg.norm(exact) / np.linalg.norm(rounded)
    assert cosine >= 0.999
    error = np.abs(exact - rounded).max()
    best, second = np.sort(exact)[-1], np.sort(exact)[-2]
    if best - second > 2 * error:
        assert exact.argmax() == rounded.argmax()


def test_headway_serves_on_torch(smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "headway", "serve", str(smollm2_path), "--executor", "torch"]
    command += [
        "--served-model-name",
        "m",
        "--port",
        "0",
        "--no-batches",
        "--kv-blocks",
        "64",
        "--max-model-len",
        "512",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None and it.stderr is not None
            url = next(line.split()[2] for line in it.stdout if line.startswith("Ready on "))
            asked = "What is the capital of France? One word."
            body = {"model": "m", "max_tokens": 8, "temperature": 0}
            body |= {"messages": [{"role": "user", "content": asked}]}
            request = Request(
                f"{url}/v1/chat/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urlopen(request, timeout=120) as answer:
                said = json.load(answer)["choices"][0]["message"]["content"]
        finally:
            it.terminate()
        assert "experimental" in it.stderr.read()
    assert "Paris" in said
