"""Hugging Face folders, against the GGUF file of the same weights."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import ModelError
from headway.models.arch import config_from_hf
from headway.models.loader import load_model
from headway.models.quant import Encoding, dequantize
from headway.models.types import AttentionShape, ModelConfig, TensorType
from tests.models.writers import (
    TINY,
    Floats,
    hf_config,
    pack_safetensors,
    tiny_folder,
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


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("config", [TINY, replace(TINY, architecture="mistral"), _QWEN2, _QWEN3])
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_equals_the_gguf_file_of_the_same_weights(
    tmp_path: Path, config: ModelConfig, tied: bool
) -> None:
    folder = load_model(tiny_folder(tmp_path / "folder", config, tied=tied))
    # Mistral's GGUF files are of architecture llama.
    same = replace(config, architecture=config.architecture.replace("mistral", "llama"))
    file = load_model(tiny_gguf(tmp_path / "m.gguf", same, tied=tied))
    assert set(folder.weights.tensors) == set(file.weights.tensors)
    for name, tensor in file.weights.tensors.items():
        other = folder.weights.tensors[name]
        assert (other.type, other.rows, other.cols) == (tensor.type, tensor.rows, tensor.cols)
        np.testing.assert_array_equal(other.data, tensor.data, err_msg=name)
    assert folder.weights.config.attention == file.weights.config.attention
    assert folder.stop_ids == file.stop_ids == {0, 2}
    text = "<|im_start|>hello world ü 42<|im_end|>"
    ids = folder.tokenizer.encode(text, add_special=True)
    assert ids[-1] == 2
    assert ids[1:] == file.tokenizer.encode(text, add_special=False)[1:]
    assert folder.chat_template is not None
    assert folder.name == "folder"


def test_half_precision_weights(tmp_path: Path) -> None:
    exact = load_model(tiny_folder(tmp_path / "f32"))
    for dtype, bound in ((Encoding.F16, 4e-3), (Encoding.BF16, 2e-2)):
        model = load_model(tiny_folder(tmp_path / dtype.name, dtype=dtype))
        assert f"from {dtype.name} to Q8_0: 15" in model.notices[0]
        for name, tensor in model.weights.tensors.items():
            kind = Encoding[tensor.type.value]
            new = dequantize(kind, tensor.data)
            old = dequantize(kind, exact.weights.tensors[name].data)
            assert np.linalg.norm(new - old) < bound * np.linalg.norm(old), name


def test_four_bits_spare_the_vocabulary(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m", tied=False)
    model, finer = load_model(folder, quantize="4bit"), load_model(folder)
    kinds = {name: tensor.type for name, tensor in model.weights.tensors.items()}
    assert kinds["embed"] is kinds["head"] is TensorType.Q8_0
    assert kinds["layers.0.q"] is kinds["layers.1.down"] is TensorType.Q4_1
    assert kinds["norm"] is TensorType.F32
    assert len(model.notices) == 2
    assert "weight error" in model.notices[1]
    assert model.weights.fingerprint != finer.weights.fingerprint


def test_a_tied_model_may_carry_its_head_twice(tmp_path: Path) -> None:
    head = np.ones((TINY.vocab, TINY.hidden), np.float32)
    folder = tiny_folder(tmp_path / "m", extra={"lm_head.weight": head})
    tensors = load_model(folder).weights.tensors
    assert tensors["head"] is tensors["embed"]


def test_stored_rope_frequencies_are_passed_over(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    load_model(tiny_folder(tmp_path / "m", extra=extra))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding-window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantised"),
        ({"num_attention_heads": 0}, "heads"),
        ({"num_hidden_layers": 3}, "layers.2"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"hidden_size": True}, "hidden_size"),
        ({"rope_theta": 1e300}, "rope_theta"),
        ({"rope_theta": 1e-320, "rope_scaling": _LLAMA3}, "impossible"),
        ({"head_dim": 10**15, "rope_scaling": {"type": "linear", "factor": 2.0}}, "head size"),
        ({"head_dim": 10**15, "rope_scaling": _LLAMA3}, "head size"),
        ({"rope_scaling": {**_LLAMA3, "factor": 0}}, "impossible"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "rope parameters"),
        ({"rms_norm_eps": 0}, "epsilon"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, overrides: dict[str, object], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason) as error:
        load_model(tiny_folder(tmp_path / "m", overrides=overrides))
    assert str(error.value).count(str(tmp_path)) == 1


def test_a_window_no_context_outgrows_is_none(tmp_path: Path) -> None:
    overrides = {"model_type": "mistral", "sliding_window": TINY.max_context}
    load_model(tiny_folder(tmp_path / "m", overrides=overrides))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file(tmp_path: Path, name: str) -> None:
    folder = tiny_folder(tmp_path / "m")
    (folder / name).unlink()
    with pytest.raises(ModelError, match="safetensors" if "safe" in name else name):
        load_model(folder)


def test_a_weight_that_is_no_number(tmp_path: Path) -> None:
    bad: Floats = np.full((TINY.vocab, TINY.hidden), np.nan, np.float32)
    folder = tiny_folder(tmp_path / "m", extra={"model.embed_tokens.weight": bad})
    with pytest.raises(ModelError, match=r"embed_tokens.*finite"):
        load_model(folder)


def test_the_template_may_stand_in_its_own_file_or_in_a_list(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    beside = {"eos_token": {"content": "<|im_end|>"}, "chat_template": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(beside))
    model = load_model(folder)
    assert model.chat_template is not None
    assert model.chat_template.render([]) == "yes"
    assert model.tokenizer.special.eos == 2
    (folder / "chat_template.jinja").write_text("file {{ eos_token }}")
    model = load_model(folder)
    assert model.chat_template is not None
    assert model.chat_template.render([]) == "file <|im_end|>"


def test_two_shards_with_one_name_are_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    (folder / "x.safetensors").write_bytes(
        pack_safetensors({"model.norm.weight": np.ones(64, "f4")})
    )
    weight_map = {"a": "x.safetensors", "b": "model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match="two files"):
        load_model(folder)


def test_llama_3_scaling_becomes_factors() -> None:
    """Known values of the published scaling: 1 for short waves, `factor` for long ones, and
    between them the blend, checked against its definition on wavelengths."""
    attention = AttentionShape(heads=32, kv_heads=8, head_dim=128)
    config = replace(TINY, attention=attention)
    old_style = {**hf_config(config), "rope_theta": 500_000.0, "rope_scaling": _LLAMA3}
    new_style = {
        **hf_config(config),
        "rope_theta": None,
        "rope_parameters": {**_LLAMA3, "rope_theta": 500_000.0},
    }
    rope = config_from_hf(old_style, biases=False, vocab=9).rope
    assert rope == config_from_hf(new_style, biases=False, vocab=9).rope
    assert len(rope.factors) == 64
    assert rope.factors[0] == 1.0
    assert rope.factors[-1] == 8.0
    for i, factor in enumerate(rope.factors):
        wavelength = 2 * math.pi * 500_000.0 ** (2 * i / 128)
        if wavelength < 8192 / 4:
            assert factor == 1.0
        elif wavelength > 8192:
            assert factor == 8.0
        else:
            kept = (8192 / wavelength - 1) / 3
            assert 1 / factor == pytest.approx((1 - kept) / 8 + kept)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_in_any_json_file(tmp_path: Path, data: st.DataObject) -> None:
    """A model or one line of reason, whatever one key says."""
    folder = tiny_folder(tmp_path / "m")
    name = data.draw(
        st.sampled_from(["config", "tokenizer_config", "generation_config", "tokenizer"])
    )
    file = folder / f"{name}.json"
    tree = json.loads(file.read_text())
    more = ["rope_scaling", "rope_parameters", "layer_types", "sliding_window", "eos_token_id"]
    tree[data.draw(st.sampled_from([*tree, *more]))] = data.draw(_ANYTHING)
    file.write_text(json.dumps(tree))
    try:
        load_model(folder)
    except ModelError as e:
        assert "\n" not in str(e)
