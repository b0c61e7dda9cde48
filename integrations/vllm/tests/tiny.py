"""A tiny random Llama as a Hugging Face folder, with a tokenizer of bytes and a chat template.

Its weights are large enough that the next token depends on the whole context: answers differ from
prompt to prompt, and change when cached KV is wrong.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LAYERS, HIDDEN, HEADS, KV_HEADS, VOCAB, INTER = 4, 256, 8, 4, 258, 256
_GAIN = 1.5


def make_model(folder: Path) -> Path:
    """Write the folder; the same files every time."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 256,
        "eos_token_id": 257,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder)
    return folder


def _weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = HIDDEN // HEADS

    def random(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (_GAIN / columns**0.5)

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator),
        "lm_head.weight": random(VOCAB, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        weights |= {
            place + "self_attn.q_proj.weight": random(HEADS * head, HIDDEN),
            place + "self_attn.k_proj.weight": random(KV_HEADS * head, HIDDEN),
            place + "self_attn.v_proj.weight": random(KV_HEADS * head, HIDDEN),
            place + "self_attn.o_proj.weight": random(HIDDEN, HEADS * head),
            place + "mlp.gate_proj.weight": random(INTER, HIDDEN),
            place + "mlp.up_proj.weight": random(INTER, HIDDEN),
            place + "mlp.down_proj.weight": random(HIDDEN, INTER),
            place + "input_layernorm.weight": torch.ones(HIDDEN),
            place + "post_attention_layernorm.weight": torch.ones(HIDDEN),
        }
    return weights


def _write_tokenizer(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
