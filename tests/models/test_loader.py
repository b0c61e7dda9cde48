"""Whole models from GGUF files: values, order of rows, names, refusals."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headway.errors import ConfigError, ModelError
from headway.models.loader import load_model
from headway.models.quant import Encoding, dequantize
from headway.models.types import AttentionShape, ModelConfig, Tensor, TensorType
from tests.models.writers import (
    TINY,
    TINY_WIDE,
    Floats,
    RawTensor,
    Value,
    gguf_tensors,
    random_weights,
    tiny_gguf,
)

_QWEN2 = replace(
    TINY,
    architecture="qwen2",
    attention=AttentionShape(heads=4, kv_heads=2, head_dim=16, qkv_bias=True),
)
_QWEN3 = replace(
    TINY,
    architecture="qwen3",
    attention=AttentionShape(heads=8, kv_heads=2, head_dim=16, qk_norm=True),
)
_BIASED_LLAMA = replace(_QWEN2, architecture="llama")


def _values(tensor: Tensor) -> Floats:
    return dequantize(Encoding[tensor.type.value], tensor.data).reshape(-1, tensor.cols)


@pytest.mark.parametrize("config", [TINY, _QWEN2, _QWEN3, _BIASED_LLAMA])
@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_arrives_in_half_split_order(
    tmp_path: Path, config: ModelConfig, tied: bool
) -> None:
    model = load_model(tiny_gguf(tmp_path / "m.gguf", config, tied=tied))
    weights = random_weights(config, tied)
    loaded = model.weights
    assert loaded.config == replace(config, norm_eps=loaded.config.norm_eps)
    assert loaded.config.norm_eps == pytest.approx(config.norm_eps)
    assert set(loaded.tensors) == {*weights, "head"}
    assert (loaded.tensors["head"] is loaded.tensors["embed"]) == tied
    for name, expected in weights.items():
        tensor = loaded.tensors[name]
        matrix = expected.ndim == 2
        assert tensor.type is (TensorType.Q8_0 if matrix else TensorType.F32)
        assert (tensor.rows, tensor.cols) == (expected.shape if matrix else (1, expected.size))
        error = np.abs(_values(tensor) - expected.reshape(tensor.rows, -1)).max()
        assert error <= (np.abs(expected).max() / 200 if matrix else 0), name


@pytest.mark.parametrize("encoding", [e for e in Encoding if e is not Encoding.F32])
def test_every_encoding_loads_exactly_or_says_by_how_much(
    tmp_path: Path, encoding: Encoding
) -> None:
    config = TINY_WIDE
    model = load_model(tiny_gguf(tmp_path / "m.gguf", config, encoding))
    stored = {t.name: t for t in gguf_tensors(config, random_weights(config), encoding)}
    floats = {TensorType.F32, TensorType.F16, TensorType.BF16}
    exact = encoding.name in {kind.value for kind in set(TensorType) - floats}
    up = model.weights.tensors["layers.1.up"]
    raw = stored["blk.1.ffn_up.weight"].data
    if exact:
        assert up.data.tobytes() == raw
        assert model.notices == ()
    else:
        assert up.type is TensorType.Q8_0
        (notice,) = model.notices
        assert f"from {encoding.name} to Q8_0: 15" in notice
        old = dequantize(encoding, np.frombuffer(raw, np.uint8))
        new = _values(up).reshape(-1)
        assert np.linalg.norm(new - old) < 0.03 * np.linalg.norm(old)


def test_block_quantised_rows_move_whole(tmp_path: Path) -> None:
    """The rows of Q in file order, gathered by hand: row 2i + j of a head becomes j·half + i."""
    model = load_model(tiny_gguf(tmp_path / "m.gguf", TINY_WIDE, Encoding.Q4_K))
    stored = gguf_tensors(TINY_WIDE, random_weights(TINY_WIDE), Encoding.Q4_K)
    raw = next(t for t in stored if t.name == "blk.0.attn_q.weight").data
    attention = TINY_WIDE.attention
    rows = np.frombuffer(raw, np.uint8).reshape(attention.heads * attention.head_dim, -1)
    half = attention.head_dim // 2
    order = [
        head * attention.head_dim + 2 * i + j
        for head in range(attention.heads)
        for j in range(2)
        for i in range(half)
    ]
    np.testing.assert_array_equal(
        model.weights.tensors["layers.0.q"].data.reshape(rows.shape), rows[order]
    )


def test_rope_factors_come_from_the_file(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, TINY.attention.head_dim // 2, dtype=np.float32)
    extra = RawTensor("rope_freqs.weight", 0, factors.shape, factors.tobytes())
    model = load_model(tiny_gguf(tmp_path / "m.gguf", extra=[extra]))
    assert model.weights.config.rope.factors == tuple(factors.tolist())


def test_linear_rope_scaling_becomes_factors(tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 4.0,
    }
    model = load_model(tiny_gguf(tmp_path / "m.gguf", metadata=keys))
    assert model.weights.config.rope.factors == (4.0,) * 8


def test_a_huge_head_makes_no_huge_factors(tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        "llama.attention.key_length": 1 << 31,
        "llama.attention.value_length": 1 << 31,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 4.0,
    }
    with pytest.raises(ModelError, match="head size"):
        load_model(tiny_gguf(tmp_path / "m.gguf", metadata=keys))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("general.architecture", "gemma3", "gemma3"),
        ("llama.expert_count", 8, "mixture-of-experts"),
        ("llama.attention.sliding_window", 64, "sliding-window"),
        ("llama.rope.scaling.type", "yarn", "yarn"),
        ("llama.rope.dimension_count", 8, "rope.dimension_count"),
        ("llama.attention.value_length", 8, "value_length"),
        ("llama.attention.head_count", 0, "heads"),
        ("llama.attention.head_count_kv", 3, "KV heads"),
        ("llama.attention.key_length", 15, "head size of 15"),
        ("llama.attention.key_length", 0, "head size of 0"),
        ("llama.block_count", 0, "layers"),
        ("llama.block_count", 3, "blk.2"),
        ("llama.block_count", 1 << 31, "layers"),
        ("llama.context_length", 0, "context"),
        ("llama.embedding_length", 96, "shape"),
        ("llama.rope.freq_base", -1.0, "rope parameters"),
        ("llama.rope.freq_base", math.nan, "rope parameters"),
        ("llama.attention.layer_norm_rms_epsilon", math.nan, "epsilon"),
        ("llama.attention.layer_norm_rms_epsilon", "small", "not a number"),
        ("tokenizer.ggml.model", "bert", "bert"),
        ("tokenizer.ggml.pre", "gpt-4o", "gpt-4o"),
        ("tokenizer.ggml.eos_token_id", 9999, "eos_token_id"),
        ("tokenizer.ggml.token_type", [1, 1], "token types"),
        ("tokenizer.ggml.merges", ["ab"], "merge"),
        ("tokenizer.ggml.merges", ["h zz"], "tokenizer"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, key: str, value: Value, reason: str
) -> None:
    file = tiny_gguf(tmp_path / "m.gguf", metadata={key: value})
    with pytest.raises(ModelError, match=reason) as error:
        load_model(file)
    assert str(error.value).count("m.gguf") == 1


@pytest.mark.parametrize(
    ("name", "shape"),
    [("blk.0.attn_output.bias", (64,)), ("blk.0.ffn_gate_exps.weight", (64,))],
)
def test_a_surplus_tensor_is_refused(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    extra = RawTensor(name, 0, shape, bytes(256))
    with pytest.raises(ModelError, match=name):
        load_model(tiny_gguf(tmp_path / "m.gguf", extra=[extra]))


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="269 tokens"):
        load_model(tiny_gguf(tmp_path / "m.gguf", replace(TINY, vocab=260)))


def test_a_broken_chat_template_is_a_notice(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"tokenizer.chat_template": "{% for %}"}
    model = load_model(tiny_gguf(tmp_path / "m.gguf", metadata=keys))
    assert model.chat_template is None
    assert "no chat completions" in model.notices[-1]


def test_the_fingerprint_sees_one_bit(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path / "m.gguf", matrices=Encoding.Q8_0)
    first = load_model(file).weights.fingerprint
    assert load_model(file).weights.fingerprint == first
    data = bytearray(file.read_bytes())
    data[-40] ^= 1
    (tmp_path / "n.gguf").write_bytes(data)
    assert load_model(tmp_path / "n.gguf").weights.fingerprint != first


def test_an_unknown_quantisation_is_a_setting_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="int8, 4bit"):
        load_model(tmp_path, quantize="int3")


def test_the_embedded_model(smollm2_path: Path) -> None:
    model = load_model(smollm2_path)
    config = model.weights.config
    assert (config.layers, config.hidden, config.vocab) == (30, 576, 49152)
    assert model.stop_ids == {0, 2}
    assert model.notices == ()
    assert model.name == "SmolLM2-135M-Instruct.Q4_1"
    digest = hashlib.sha256(smollm2_path.read_bytes()).hexdigest()
    assert model.weights.fingerprint == digest
    assert model.chat_template is not None
    prompt = model.chat_template.render([{"role": "user", "content": "Hi"}])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert model.tokenizer.encode(prompt, add_special=False)[:3] == [1, 4093, 198]
