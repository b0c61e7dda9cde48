"""A GGUF file as a Hugging Face folder in fp32, for engines that read nothing else.

    python bench/peers/hf_folder.py MODEL.gguf FOLDER

The values are exactly those of the file: it is dequantised, not converted. Tokenizer and chat
template are the file's too.
"""

import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from headway.models.arch import Slot, config_from_gguf, slots
from headway.models.gguf import GgufFile, read_gguf
from headway.models.quant import dequantize
from headway.models.tokenizer_gguf import load_tokenizer_gguf
from headway.models.types import ModelConfig
from headway.models.weights import half_split

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_folder(source: Path, folder: Path) -> None:
    """Write the folder. Raises ModelError for a file that is not supported."""
    file = read_gguf(source)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    config = config_from_gguf(file.metadata, shapes, ())
    tied = "output.weight" not in file.tensors
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {slot.hf: values(file, slot) for slot in slots(config, tied)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_config(file, config, tied, folder)
    write_tokenizer(file, folder)


def values(file: GgufFile, slot: Slot) -> npt.NDArray[np.float32]:
    """A tensor as Hugging Face has it: rows of Q and K in the half-split form of RoPE."""
    stored = file.tensors[slot.gguf]
    rows = dequantize(stored.encoding, stored.data).reshape(slot.shape[0], -1)
    if slot.rotated_heads:
        rows = half_split(rows, slot.rotated_heads)
    return np.ascontiguousarray(rows.reshape(slot.shape), dtype=np.float32)


def write_config(file: GgufFile, config: ModelConfig, tied: bool, folder: Path) -> None:
    """config.json."""
    attention = config.attention
    begin, end = special_ids(file)
    fields = {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": tied,
        "attention_bias": attention.qkv_bias,
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "bos_token_id": begin,
        "eos_token_id": end,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2))


def write_tokenizer(file: GgufFile, folder: Path) -> None:
    """tokenizer.json and its settings, the chat template among them."""
    tokenizer = load_tokenizer_gguf(file.metadata)
    tokenizer._core.save(str(folder / "tokenizer.json"))
    names = file.metadata.strings("tokenizer.ggml.tokens")
    begin, end = special_ids(file)
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": names[begin],
        "eos_token": names[end],
        "chat_template": file.metadata.string("tokenizer.chat_template", ""),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(fields, indent=2))


def special_ids(file: GgufFile) -> tuple[int, int]:
    """Beginning and end of sequence."""
    metadata = file.metadata
    return (
        metadata.integer("tokenizer.ggml.bos_token_id"),
        metadata.integer("tokenizer.ggml.eos_token_id"),
    )


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
