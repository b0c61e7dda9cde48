"""The torch model against the float64 reference, and its sampler against the CPU executor's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.core.plan import Chunk, Open, Penalties, SamplingSpec, StepPlan, Truncation
from headway.core.types import BlockId, Lane, RequestId
from headway.errors import ModelError
from headway.executors.native import NativeExecutor, NativeOptions
from headway.executors.torch_.attention import GatheredAttention
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.model import Transformer
from headway.executors.torch_.options import TorchOptions
from headway.executors.torch_.pools import block_shape
from headway.executors.torch_.rows import Layout, tiles, together
from headway.executors.torch_.sampler import Row, SamplingState, choose, read, uniforms
from headway.executors.torch_.weights import to_torch
from headway.models.loader import load_model
from headway.models.quant import Encoding, dequantize
from headway.models.safetensors import read_folder
from headway.models.types import Rope, Weights
from headway.testing import make_capacity
from tests.models.writers import tiny_folder
from tests.reference import Reference
from tests.tiny import ALL, tiny_weights, tokens

CPU = torch.device("cpu")
LENGTH = 45


def scaled(weights: Weights) -> Weights:
    """The same model with stretched frequencies."""
    factors = tuple(1.0 + i / 4 for i in range(weights.config.attention.head_dim // 2))
    rope = Rope(weights.config.rope.theta, factors)
    return replace(weights, config=replace(weights.config, rope=rope))


MODELS = {
    **{name: tiny_weights(tiny) for name, tiny in ALL.items()},
    "scaled": scaled(tiny_weights()),
}


def logits(weights: Weights, prompt: Sequence[int], tiled: bool) -> torch.Tensor:
    """Of the last token, in float64."""
    model = Transformer(
        weights.config, to_torch(weights, torch.float64, CPU), GatheredAttention(), 512
    )
    pool = torch.full((9, *block_shape(weights.config, 16)), torch.nan, dtype=torch.float64)
    layout = Layout(16, 8, CPU)
    blocks = [BlockId(i) for i in (5, 2, 7, 1)]
    chunk = Chunk(RequestId(0), prompt, 0, blocks, len(blocks), True)
    parts = tiles(chunk, layout) if tiled else iter([together([chunk], layout)])
    for part in parts:
        x = model.embed(part)
        for index in range(weights.config.layers):
            x = model.layer(index, x, pool[:, index], part)
    return model.logits(x[part.sampled])[0]


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_reference(name: str, tiled: bool) -> None:
    prompt = tokens(LENGTH)
    expected = Reference(MODELS[name], quantised=False).forward(list(prompt))[-1]
    got = logits(MODELS[name], prompt, tiled).double().numpy()
    # Norms and rotations are rounded to float32.
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < 1e-5


def executor(weights: Weights, invariant: bool) -> TorchExecutor:
    """Room for four sequences."""
    capacity = make_capacity(kv_blocks=32, max_seqs=4, max_step_tokens=80, max_model_len=128)
    return TorchExecutor(weights, capacity, TorchOptions(invariant=invariant))


def test_one_batch_gives_the_tokens_of_tiles() -> None:
    weights = tiny_weights(scale=4.0)
    answers = []
    for invariant in (True, False):
        with_rows = executor(weights, invariant)
        opens = tuple(Open(RequestId(i), tokens(20 + i), SamplingSpec()) for i in range(3))
        blocks = [[BlockId(4 * i + j) for j in range(4)] for i in range(3)]
        chunks = tuple(
            Chunk(one.request, one.prompt, 0, table, 4, True)
            for one, table in zip(opens, blocks, strict=True)
        )
        answer = []
        plan = StepPlan(0, Lane.UNIFIED, opens, chunks=chunks)
        for step in range(8):
            sampled = with_rows.submit(plan, {}).result(60).sampled
            answer.append([s.token for s in sampled])
            chunks = tuple(
                Chunk(c.request, [s.token], c.start + len(c.tokens), c.blocks, 4, True)
                for c, s in zip(chunks, sampled, strict=True)
            )
            plan = StepPlan(step + 1, Lane.UNIFIED, chunks=chunks)
        with_rows.close()
        answers.append(answer)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_is_near(name: str, dtype: str) -> None:
    """Chunk by chunk, then a row that decodes."""
    weights, prompt = MODELS[name], tokens(41)
    capacity = make_capacity(kv_blocks=8, max_seqs=2, max_step_tokens=64, max_model_len=64)
    half = TorchExecutor(weights, capacity, TorchOptions(dtype=dtype, invariant=False))
    opens = (Open(RequestId(0), prompt, SamplingSpec(logprobs=weights.config.vocab)),)
    blocks = [BlockId(i) for i in (4, 1, 6)]
    for step, (start, end) in enumerate(((0, 23), (23, 40), (40, 41))):
        chunk = Chunk(RequestId(0), prompt[start:end], start, blocks, 3, end == 41)
        plan = StepPlan(step, Lane.UNIFIED, opens if step == 0 else (), chunks=(chunk,))
        sampled = half.submit(plan, {}).result(60).sampled
    half.close()
    assert sampled[0].logprobs is not None
    got = np.array([value for _, value in sorted(sampled[0].logprobs.top)])
    expected = Reference(weights, quantised=False).forward(list(prompt))[-1]
    got, expected = got - got.mean(), expected - expected.mean()
    cosine = got @ expected / np.linalg.norm(got) / np.linalg.norm(expected)
    assert cosine > (0.999 if dtype == "bf16" else 0.99999)


def test_philox_is_that_of_random123() -> None:
    """Known answers of the paper's implementation, for a zero and an all-ones key and counter."""
    ones = (1 << 64) - 1
    known = [(0x6627E8D5E169C58D >> 11) * 2.0**-53, (0x408F276D41C83B0E >> 11) * 2.0**-53]
    assert uniforms([(0, 0, 0), (ones, ones, ones)]).tolist() == known


SPECS = {
    "greedy": SamplingSpec(),
    "plain": SamplingSpec(temperature=1.0),
    "min_p": SamplingSpec(temperature=1.3, truncation=Truncation(min_p=0.05)),
    "top_k": SamplingSpec(temperature=1.0, truncation=Truncation(top_k=9)),
    "top_p": SamplingSpec(temperature=1.0, truncation=Truncation(top_p=0.8)),
    "all": SamplingSpec(
        temperature=0.9,
        truncation=Truncation(top_k=30, top_p=0.9, min_p=0.02),
        penalties=Penalties(1.2, 0.3, 0.1),
        bias=((3, 1.5), (9, -2.0)),
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_sampler_chooses_what_the_cpu_executor_does(name: str) -> None:
    """Same logits, same seed: the same tokens, but where a sum's last bit decides."""
    weights = tiny_weights(scale=2.0)
    native = NativeExecutor(weights, NativeOptions(8, max_step_tokens=80, max_model_len=128))
    native.native.traced = True
    prompt, same, tries = tokens(24), 0, 40
    for seed in range(tries):
        spec = replace(SPECS[name], seed=seed)
        chunk = Chunk(RequestId(seed), prompt, 0, [BlockId(0), BlockId(1)], 2, True)
        plan = StepPlan(seed, Lane.UNIFIED, (Open(RequestId(seed), prompt, spec),), chunks=(chunk,))
        handle = native.submit(plan, {})
        expected = handle.result(30).sampled[0].token
        logits = torch.from_numpy(handle.native.trace()[1][:1].copy())
        row = Row(SamplingState(spec, prompt), len(prompt) - 1, None)
        same += read(choose(logits, [row], -1), [row])[0].token == expected
    native.close()
    assert same >= tries - 1


@pytest.mark.parametrize("encoding", [Encoding.F32, Encoding.F16, Encoding.BF16])
def test_a_folders_own_floats_reach_torch(tmp_path: Path, encoding: Encoding) -> None:
    """`quantize="none"` keeps what the file holds, and the CPU executor refuses it by name."""
    folder = tiny_folder(tmp_path / "folder", dtype=encoding)
    weights = load_model(folder, "none").weights
    down = weights.tensors["layers.1.down"]
    assert down.type.value == encoding.name
    stored = read_folder(folder)["model.safetensors"].tensors["model.layers.1.mlp.down_proj.weight"]
    want = dequantize(encoding, stored.data).reshape(down.rows, down.cols)
    got = to_torch(weights, torch.float32, CPU).layers[1].projections.down
    assert np.array_equal(got.numpy(), want)
    with pytest.raises(ModelError, match="quantised"):
        NativeExecutor(weights, NativeOptions(4, max_model_len=32))
