"""Sizes that fit the machine, and an engine put together around a tiny model."""

from dataclasses import replace
from typing import Any

import pytest

from headway.assembly import (
    Backend,
    EngineOptions,
    Sizes,
    block_bytes,
    build_engine,
    describe,
    native_options,
)
from headway.core.controller import LaneMode
from headway.core.types import FinishReason
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.errors import ConfigError, NeverFitsError
from headway.testing import make_capacity
from tests.tiny import tiny_loaded

SIZES = Sizes(kv_blocks=16, max_seqs=4, max_step_tokens=64, max_model_len=128, threads=1)


def test_a_gpu_is_not_promised_in_silence() -> None:
    for backend in (
        {"device": "cuda"},
        {"dtype": "bf16"},
        {"attention": "gathered"},
        {"graphs": "off"},
    ):
        with pytest.raises(ConfigError, match="need --executor torch"):
            Backend(**backend)
    assert Backend("torch", "cuda", "bf16").floats == "bf16"


def test_engine_around_a_tiny_model_answers() -> None:
    model = tiny_loaded()
    prompt = model.tokenizer.encode("hello", add_special=False)
    request = GenerationRequest(prompt, sampling=SamplingParams(0.0), stop=StopConditions(8))
    engine = build_engine(model, EngineOptions(SIZES))
    engine.start()
    try:
        first, second = (list(engine.submit_sync(request)) for _ in range(2))
        tokens = [[i.token for d in deltas for i in d.tokens] for deltas in (first, second)]
        assert tokens[0] == tokens[1] and 0 < len(tokens[0]) <= 8
        assert first[-1].finish in (FinishReason.LENGTH, FinishReason.STOP)
        with pytest.raises(NeverFitsError):
            engine.submit_sync(GenerationRequest(prompt * 30))
        assert engine.max_model_len == 128
    finally:
        engine.stop()


@pytest.mark.parametrize(
    "sizes",
    [
        {"kv_blocks": 0},
        {"host_blocks": -1},
        {"block_size": 0},
        {"max_seqs": 0},
        {"max_step_tokens": 0},
        {"max_model_len": 1},
        {"threads": 0},
        {"threads": 5000},
        {"max_seqs": 100_000_000},
        {"max_step_tokens": 1 << 21},
    ],
)
def test_sizes_out_of_range_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must"):
        Sizes(**sizes)


def test_the_size_that_is_out_of_range_is_named() -> None:
    with pytest.raises(ConfigError, match="max_seqs must be at least 1, not 0"):
        Sizes(max_seqs=0)


@pytest.mark.parametrize("name", Sizes.__slots__)
@pytest.mark.parametrize("value", ["x", 1.5, True])
def test_sizes_that_are_no_whole_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a whole number, not {value!r}"):
        replace(Sizes(), **{name: value})


def test_a_step_larger_than_the_memory_is_refused() -> None:
    wide = replace(tiny_loaded().weights.config, intermediate=1 << 24)
    with pytest.raises(ConfigError, match=r"steps of 65,552 tokens .* GB are free"):
        native_options(wide, Sizes(max_seqs=1 << 16))


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(SIZES, policy="fair"),
        EngineOptions(Sizes(kv_blocks=16, max_seqs=64, max_step_tokens=64, threads=1)),
        EngineOptions(Sizes(kv_blocks=16, max_model_len=100_000, threads=1)),
        EngineOptions(Sizes(kv_blocks=16, block_size=8, threads=1)),
        EngineOptions(SIZES, lanes=LaneMode.SPLIT),
    ],
)
def test_options_that_can_not_work_are_refused(options: EngineOptions) -> None:
    with pytest.raises(ConfigError):
        build_engine(tiny_loaded(), options)


def test_defaults_fit_the_machine() -> None:
    config = tiny_loaded().weights.config
    options = native_options(config, Sizes())
    assert options.kv_blocks == 4096 and options.host_blocks == 0
    assert options.max_seqs == 64 and options.max_step_tokens == 512
    assert options.max_model_len == config.max_context
    assert native_options(config, Sizes(max_seqs=600)).max_step_tokens == 616
    assert native_options(config, Sizes(kv_blocks=2)).max_model_len == 32


def test_a_length_that_was_asked_for_and_the_pool_does_not_hold_is_refused() -> None:
    config = tiny_loaded().weights.config
    assert native_options(config, Sizes(kv_blocks=4, max_model_len=64)).max_model_len == 64
    with pytest.raises(ConfigError, match=r"65 \(max_model_len\) .* 64 tokens .* 4 blocks \(kv_bl"):
        native_options(config, Sizes(kv_blocks=4, max_model_len=65))


def test_block_bytes_are_the_executors_own() -> None:
    model = tiny_loaded()
    engine = build_engine(model, EngineOptions(SIZES))
    try:
        assert engine.capacity.block_bytes == block_bytes(model.weights.config, 16)
    finally:
        engine.stop()


def test_a_pool_beyond_the_memory_says_how_many_blocks_fit() -> None:
    sizes = replace(SIZES, kv_blocks=(1 << 31) - 1)
    with pytest.raises(ConfigError, match=r"about [\d,]+ of both together would fit"):
        build_engine(tiny_loaded(), EngineOptions(sizes))


def test_pool_in_words() -> None:
    line = describe(make_capacity(kv_blocks=4096, max_model_len=2048))
    assert line == "KV: 4,096 blocks = 65,536 tokens = 32 sequences of 2,048; 64 MiB"
    line = describe(make_capacity(kv_blocks=4, host_blocks=1000, max_model_len=2048))
    assert line == "KV: 4 blocks = 64 tokens = 1 sequence of 64; 0 MiB; host: 1,000 blocks"
    sized = replace(make_capacity(kv_blocks=4096, max_model_len=2048), block_bytes=3 << 18)
    assert describe(sized).endswith(" = 32 sequences of 2,048; 3,072 MiB")
