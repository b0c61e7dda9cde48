"""Writers of small model files, correct or broken on purpose."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.models.arch import slots
from headway.models.quant import Encoding, row_bytes
from headway.models.tokenizer import byte_alphabet
from headway.models.types import AttentionShape, ModelConfig, Rope

Value = bool | int | float | str | Sequence[str] | Sequence[int] | Sequence[float]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it goes into a file; `shape` outermost first, `type` GGUF's number."""

    name: str
    type: int
    shape: tuple[int, ...]
    data: bytes


def gguf_bytes(
    metadata: Mapping[str, Value],
    tensors: Sequence[RawTensor],
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole GGUF file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    body = b""
    for tensor in tensors:
        dims = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += _string(tensor.name) + struct.pack("<I", len(tensor.shape)) + dims
        head += struct.pack("<IQ", tensor.type, len(body))
        body += tensor.data + b"\0" * (-len(tensor.data) % alignment)
    return head + b"\0" * (-len(head) % alignment) + body


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if all(isinstance(item, str) for item in value):
        items = b"".join(_string(str(item)) for item in value)
        return struct.pack("<IIQ", 9, 8, len(value)) + items
    kind, code = (5, "i") if all(isinstance(item, int) for item in value) else (6, "f")
    return struct.pack("<IIQ", 9, kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)


TINY = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    intermediate=96,
    vocab=272,
    attention=AttentionShape(heads=4, kv_heads=2, head_dim=16),
    rope=Rope(10_000.0),
    norm_eps=1e-5,
    max_context=128,
)
"""A model that fits in a few kilobytes."""

TINY_WIDE = replace(
    TINY,
    hidden=256,
    intermediate=512,
    attention=AttentionShape(heads=4, kv_heads=2, head_dim=64),
)
"""Rows that are whole blocks of 256, for K-quants."""

Floats = npt.NDArray[np.float32]


def random_weights(config: ModelConfig, tied: bool = True, seed: int = 0) -> dict[str, Floats]:
    """Float weights by our names, rows in half-split order."""
    rng = np.random.default_rng(seed)
    weights = {}
    for slot in slots(config, tied):
        scale = 0.02 if len(slot.shape) == 2 else 0.1
        weights[slot.name] = rng.normal(0, scale, slot.shape).astype(np.float32)
    return weights


def gguf_tensors(
    config: ModelConfig,
    weights: Mapping[str, Floats],
    matrices: Encoding = Encoding.F32,
    tied: bool = True,
    seed: int = 0,
) -> list[RawTensor]:
    """Tensors under GGUF's names, vectors and float matrices from `weights`, whose Q and K rows
    are brought into the interleaved order of Llama's files; other matrices are random blocks."""
    rng = np.random.default_rng(seed)
    tensors = []
    for slot in slots(config, tied):
        values = weights[slot.name]
        if slot.rotated_heads:
            halves = values.reshape(slot.rotated_heads, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        encoding = matrices if len(slot.shape) == 2 else Encoding.F32
        if encoding in (Encoding.F32, Encoding.F16, Encoding.BF16):
            data = _floats(values, encoding)
        else:
            data = random_blocks(encoding, slot.shape, rng)
        tensors.append(RawTensor(slot.gguf, int(encoding), slot.shape, data))
    return tensors


def _floats(values: Floats, encoding: Encoding) -> bytes:
    if encoding is Encoding.F32:
        return values.astype("<f4").tobytes()
    if encoding is Encoding.F16:
        return values.astype("<f2").tobytes()
    top = np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)
    return top.astype("<u2").tobytes()


def random_blocks(encoding: Encoding, shape: tuple[int, ...], rng: np.random.Generator) -> bytes:
    """Random bytes of a block format that hold no infinite scale: every 16-bit word is finite."""
    rows, cols = shape
    words = rng.integers(0, 1 << 16, rows * row_bytes(encoding, cols) // 2, dtype=np.uint16)
    return (words & np.uint16(0xBBFF)).tobytes()


def gguf_config(config: ModelConfig) -> dict[str, Value]:
    """Metadata of a model's shape."""
    name, attention = config.architecture, config.attention
    return {
        "general.architecture": name,
        f"{name}.block_count": config.layers,
        f"{name}.context_length": config.max_context,
        f"{name}.embedding_length": config.hidden,
        f"{name}.feed_forward_length": config.intermediate,
        f"{name}.attention.head_count": attention.heads,
        f"{name}.attention.head_count_kv": attention.kv_heads,
        f"{name}.attention.key_length": attention.head_dim,
        f"{name}.attention.value_length": attention.head_dim,
        f"{name}.rope.freq_base": config.rope.theta,
        f"{name}.attention.layer_norm_rms_epsilon": config.norm_eps,
    }


CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0 to 2 of the byte-level vocabulary."""

MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "r l", "rl d", "Ġwo rld", "Ã ¼")

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_metadata(pre: str = "smollm") -> dict[str, Value]:
    """A byte-level vocabulary of 3 control tokens, 256 bytes and ten merges: 269 tokens."""
    pieces = ["".join(merge.split(" ")) for merge in MERGES]
    tokens = [*CONTROLS, *byte_alphabet(), *pieces]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def tiny_gguf(
    path: Path,
    config: ModelConfig = TINY,
    matrices: Encoding = Encoding.F32,
    metadata: Mapping[str, Value] | None = None,
    extra: Sequence[RawTensor] = (),
    tied: bool = True,
) -> Path:
    """A whole random model with a byte-level tokenizer; `metadata` overrides keys."""
    keys = gguf_config(config) | byte_level_metadata() | dict(metadata or {})
    tensors = gguf_tensors(config, random_weights(config, tied), matrices, tied)
    path.write_bytes(gguf_bytes(keys, [*tensors, *extra]))
    return path


def safetensors_bytes(header: object, body: bytes = b"") -> bytes:
    """A file with any header, proper or not."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tiny_folder(
    path: Path,
    config: ModelConfig = TINY,
    dtype: Encoding = Encoding.F32,
    tied: bool = True,
    overrides: Mapping[str, object] | None = None,
    extra: Mapping[str, Floats] | None = None,
) -> Path:
    """A Hugging Face folder with the weights of `random_weights`; `overrides` of config.json."""
    path.mkdir(exist_ok=True)
    weights = random_weights(config, tied)
    named = {slot.hf: weights[slot.name] for slot in slots(config, tied)} | dict(extra or {})
    (path / "model.safetensors").write_bytes(pack_safetensors(named, dtype))
    keys = hf_config(config) | {"tie_word_embeddings": tied} | dict(overrides or {})
    (path / "config.json").write_text(json.dumps(keys))
    (path / "tokenizer.json").write_text(json.dumps(byte_level_json()))
    beside = {"eos_token": "<|im_end|>", "bos_token": None, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(beside))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return path


def pack_safetensors(tensors: Mapping[str, Floats], dtype: Encoding = Encoding.F32) -> bytes:
    """Tensors one after the other, all in one float type."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in tensors.items():
        data = _floats(values, dtype)
        span = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype.name, "shape": values.shape, "data_offsets": span}
        body += data
    return safetensors_bytes(header, body)


def hf_config(config: ModelConfig) -> dict[str, object]:
    """config.json of a model's shape."""
    return {
        "model_type": config.architecture,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.attention.heads,
        "num_key_value_heads": config.attention.kv_heads,
        "head_dim": config.attention.head_dim,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_context,
        "hidden_act": "silu",
        "vocab_size": config.vocab,
    }


def byte_level_json() -> dict[str, object]:
    """tokenizer.json of the vocabulary of `byte_level_metadata`, with SmolLM2's words."""
    pieces = ["".join(merge.split(" ")) for merge in MERGES]
    tokens = [*CONTROLS, *byte_alphabet(), *pieces]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": name, "special": True, **flags} for i, name in enumerate(CONTROLS)
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": list(MERGES),
        },
    }
