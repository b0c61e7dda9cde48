"""Whether the torch executor is right on a device, in one arrangement: the first part."""

from dataclasses import replace

import numpy as np
import torch
from gpu_rig import BLOCK, LLAMA_8B, TINY

from headway.core.plan import Capacity, Chunk, Open, SamplingSpec, StepPlan
from headway.core.types import BlockId, Lane, RequestId
from headway.executors.torch_.attention import attention_for, difference
from headway.executors.torch_.executor import TorchExecutor
from headway.executors.torch_.options import TorchOptions
from headway.models.types import Weights
from headway.testing import conformance
from tests.reference import Reference
from tests.tiny import ALL, tiny_weights


def correct(options: TorchOptions) -> dict[str, object]:
    """Tiny models in float32: logits against float64, several sequences at once, and the
    conformance suite where bits must not depend on neighbours; attention in the dtype that is
    measured. `failed`: what is wrong."""
    device, dtype = torch.device(options.device), options.torch_dtype
    # A machine for each of the many executors: parts of the GPU are measured, not checked.
    small = replace(options, dtype="fp32", divided=False)
    failed, errors = [], {}
    for name, tiny in ALL.items():
        errors[name] = _logprob_error(tiny_weights(tiny), small)
        if not errors[name] < 1e-3:
            failed.append(f"{name}: log probabilities are off by {errors[name]:.3g}")
    apart = {}
    shape = LLAMA_8B.attention if device.type == "cuda" else TINY.attention
    attention = attention_for(options.attention, shape, BLOCK, dtype, device)
    apart["attention"] = difference(attention, shape, BLOCK, dtype, device)
    if not apart["attention"] < 0.02:
        failed.append(f"attention is off by {apart['attention']:.3g}")
    exact = replace(small, invariant=True, graphs="off")
    checks = (*conformance.CHECKS, conformance.check_masks)
    for check in checks:
        try:
            check(lambda: TorchExecutor(tiny_weights(), _tiny_capacity(), exact))
        except Exception as error:
            failed.append(f"{check.__name__}: {error!r}")
    return {"logprob_error": errors, **apart, "conformance": len(checks), "failed": failed}


def _tiny_capacity() -> Capacity:
    return Capacity(32, 8, BLOCK, 4, 80, 128, 1)


def _logprob_error(weights: Weights, options: TorchOptions) -> float:
    """The largest of three sequences', after their prompts and after two tokens more."""
    executor = TorchExecutor(weights, _tiny_capacity(), options)
    spec = SamplingSpec(logprobs=weights.config.vocab)
    texts = [list(range(1 + i, 20 + 8 * i)) for i in range(3)]
    reference, worst = Reference(weights, quantised=False), 0.0
    opens = tuple(Open(RequestId(i), text, spec) for i, text in enumerate(texts))
    starts = [0, 0, 0]
    for step in range(3):
        chunks = tuple(
            Chunk(
                RequestId(i), text[starts[i] :], starts[i],
                [BlockId(8 * i + j) for j in range(8)], 8, True,
            )
            for i, text in enumerate(texts)
        )  # fmt: skip
        plan = StepPlan(step, Lane.UNIFIED, opens if step == 0 else (), chunks=chunks)
        sampled = executor.submit(plan, {}).result(300).sampled
        for i, one in enumerate(sampled):
            assert one.logprobs is not None
            got = np.array([value for _, value in sorted(one.logprobs.top)])
            row = reference.forward(texts[i])[-1]
            want = row - row.max() - np.log(np.exp(row - row.max()).sum())
            worst = max(worst, float(np.abs(got - want).max()))
            starts[i] = len(texts[i])
            texts[i].append(one.token)
    executor.close()
    return worst
