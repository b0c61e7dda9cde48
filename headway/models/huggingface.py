"""A Hugging Face folder: config.json, safetensors, tokenizer.json and what stands beside them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ModelError
from headway.models.arch import Slot, config_from_hf
from headway.models.quant import StoredTensor
from headway.models.safetensors import SafetensorsFile, read_folder, read_json
from headway.models.tokenizer import SpecialNames, Tokenizer, load_tokenizer_json
from headway.models.types import TensorType, Weights
from headway.models.weights import Layout, assemble

QUANTISATIONS = {"int8": TensorType.Q8_0, "4bit": TensorType.Q4_1, "none": None}
"""What float weights may become at load; "none" leaves them as they are, for executors that compute
in floats."""

_MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Folder:
    """What a folder holds. `template` is the source of its chat template, if any."""

    weights: Weights
    tokenizer: Tokenizer
    template: str | None
    notices: tuple[str, ...]


def load_folder(path: Path, quantize: str) -> Folder:
    """Read and quantise a folder; about 1 s for every 100 million weights.

    quantize: one of QUANTISATIONS; embedding and head become Q8_0 in any case.
    Raises ModelError, in one line, for what can't be used.
    """
    raw = read_json(path / "config.json")
    files = read_folder(path)
    stored = _merged(files)
    tied = raw.get("tie_word_embeddings") is True or "lm_head.weight" not in stored
    if tied:
        stored.pop("lm_head.weight", None)
    embedding = stored.get("model.embed_tokens.weight")
    config = config_from_hf(
        raw,
        biases="model.layers.0.self_attn.q_proj.bias" in stored,
        vocab=embedding.shape[0] if embedding is not None and embedding.shape else 0,
    )
    layout = Layout(lambda slot: slot.hf, _Target(QUANTISATIONS[quantize]), interleaved=False)
    assembled = assemble(config, stored, layout, tied)
    fingerprint = _digest(path, files, quantize)
    beside = read_json(path / "tokenizer_config.json") if _has(path, "tokenizer_config") else {}
    return Folder(
        Weights(config, assembled.tensors, fingerprint),
        load_tokenizer_json(path / "tokenizer.json", _special_names(path, raw, beside)),
        _template(path, beside),
        assembled.notices,
    )


def _merged(files: Mapping[str, SafetensorsFile]) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for file in files.values():
        for name, tensor in file.tensors.items():
            if name in stored:
                raise ModelError(f"tensor {name!r} is in two files")
            # Older checkpoints store RoPE's frequencies, which follow from the config.
            if not name.endswith("rotary_emb.inv_freq"):
                stored[name] = tensor
    return stored


@dataclass(frozen=True, slots=True)
class _Target:
    """Type of a slot's matrix; the vocabulary's stay at 8 bits, where errors cost most."""

    matrices: TensorType | None

    def __call__(self, slot: Slot) -> TensorType | None:
        if self.matrices is None:
            return None
        return TensorType.Q8_0 if slot.name in ("embed", "head") else self.matrices


def _digest(path: Path, files: Mapping[str, SafetensorsFile], quantize: str) -> str:
    """SHA-256 of everything the weights follow from."""
    digest = hashlib.sha256(f"folder {quantize}\0".encode())
    digest.update((path / "config.json").read_bytes())
    for name, file in files.items():
        digest.update(f"\0{name} {len(file.buffer)}\0".encode())
        digest.update(file.buffer)
    return digest.hexdigest()


def _has(path: Path, stem: str) -> bool:
    return (path / f"{stem}.json").exists()


def _special_names(
    path: Path, config: Mapping[str, object], beside: Mapping[str, object]
) -> SpecialNames:
    """Names and ids from tokenizer_config.json, generation_config.json and config.json."""
    generation = (
        read_json(path / "generation_config.json") if _has(path, "generation_config") else {}
    )
    stop = {*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))}
    return SpecialNames(_content(beside.get("bos_token")), _content(beside.get("eos_token")), stop)


def _ids(value: object) -> Iterable[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int and item >= 0]


def _content(token: object) -> str | None:
    """A token's name, which stands alone or in an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _template(path: Path, beside: Mapping[str, object]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        if file.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ModelError(f"{file}: larger than any chat template")
        try:
            return file.read_text("utf-8")
        except (OSError, ValueError) as e:
            raise ModelError(f"{file}: can't be read: {e}") from e
    template = beside.get("chat_template")
    if isinstance(template, list):
        named = {
            item.get("name"): item.get("template") for item in template if isinstance(item, dict)
        }
        template = named.get("default")
    return template if isinstance(template, str) else None
