"""A model file or folder to everything a server needs of it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from headway.errors import ConfigError, ModelError
from headway.models.arch import config_from_gguf
from headway.models.cache import default_cache, file_sha256
from headway.models.chat import ChatTemplate
from headway.models.gguf import GgufFile, Metadata, read_gguf
from headway.models.grammar_trial import GrammarTrial
from headway.models.grammars import GrammarCompiler
from headway.models.huggingface import QUANTISATIONS, load_folder
from headway.models.templates import template_for
from headway.models.tokenizer import Tokenizer
from headway.models.tokenizer_gguf import load_tokenizer_gguf
from headway.models.types import ModelConfig, TensorType, Weights
from headway.models.weights import Layout, as_float32, assemble

_GGUF_LAYOUT = Layout(
    name_of=lambda slot: slot.gguf, target=lambda slot: TensorType.Q8_0, interleaved=True
)
_ROPE_FACTORS = "rope_freqs.weight"
_NO_CHAT = "no chat completions: "


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, ready to run.

    chat_template: None where the file has none, or one that can't be used (a notice says why).
    stop_ids: tokens that end an answer.
    name: of the file or folder.
    notices: one line each, for a person, on what is not as in the file.
    """

    weights: Weights
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    stop_ids: frozenset[int]
    name: str
    notices: tuple[str, ...]

    def with_template(self, source: str) -> "LoadedModel":
        """The same model with another chat template. Raises ModelError for a malformed one."""
        chat = ChatTemplate(source, _named_tokens(self.tokenizer))
        notices = tuple(n for n in self.notices if not n.startswith(_NO_CHAT))
        return replace(self, chat_template=chat, notices=notices)

    def grammars(self, guarded: bool = False) -> GrammarCompiler | None:
        """A compiler for its vocabulary; None where no token ends an answer.

        guarded: whether strangers write the grammars, which then have to pass a trial.
        """
        if not self.stop_ids:
            return None
        words = self.tokenizer, self.weights.config.vocab, self.stop_ids
        return GrammarCompiler(*words, GrammarTrial(*words) if guarded else None)


def load_model(path: Path, quantize: str = "int8") -> LoadedModel:
    """Load a GGUF file, or a Hugging Face folder with safetensors.

    quantize: "int8" (Q8_0), "4bit" (Q4_1; embedding and head stay Q8_0) or "none": what a folder's
        float weights become. A GGUF file's matrices stay as they are where executors know the type,
        and become Q8_0 elsewhere.
    Matrices that stay are views of the mapped file. Takes about 0.15 s for a GGUF file, most of it
    the tokenizer; the digest of the whole file, beside it, is remembered in the cache.
    Raises ModelError, in one line, for what can't be used, and ConfigError for another `quantize`.
    """
    if quantize not in QUANTISATIONS:
        raise ConfigError(f"quantize must be one of {', '.join(QUANTISATIONS)}, not {quantize!r}")
    return _load_folder(path, quantize) if path.is_dir() else _load_gguf(path)


def _load_folder(path: Path, quantize: str) -> LoadedModel:
    try:
        folder = load_folder(path, quantize)
        return _finished(path, folder.weights, folder.tokenizer, folder.template, folder.notices)
    except ModelError as e:
        raise _located(path, e) from e


def _located(path: Path, error: ModelError) -> ModelError:
    """The error with the path in front, once."""
    message = str(error)
    return ModelError(message if message.startswith(str(path)) else f"{path}: {message}")


def _load_gguf(path: Path) -> LoadedModel:
    file = read_gguf(path)
    try:
        with ThreadPoolExecutor(1) as pool:
            # Of the whole file, for samples would miss small edits; beside the rest, since hashing
            # lets go of the interpreter.
            digest = pool.submit(file_sha256, path, default_cache())
            config = _gguf_config(file)
            assembled = assemble(
                config,
                {name: tensor for name, tensor in file.tensors.items() if name != _ROPE_FACTORS},
                _GGUF_LAYOUT,
                tied="output.weight" not in file.tensors,
            )
            tokenizer = load_tokenizer_gguf(file.metadata)
        weights = Weights(config, assembled.tensors, digest.result())
        template = template_for(weights.fingerprint, _gguf_template(file.metadata))
        return _finished(path, weights, tokenizer, template, assembled.notices)
    except ModelError as e:
        raise _located(path, e) from e


def _gguf_config(file: GgufFile) -> ModelConfig:
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    stored = file.tensors.get(_ROPE_FACTORS)
    factors = () if stored is None else tuple(as_float32(stored).tolist())
    return config_from_gguf(file.metadata, shapes, factors)


def _gguf_template(metadata: Metadata) -> str | None:
    key = "tokenizer.chat_template"
    return metadata.string(key) if key in metadata else None


def _finished(
    path: Path,
    weights: Weights,
    tokenizer: Tokenizer,
    template: str | None,
    notices: tuple[str, ...],
) -> LoadedModel:
    if tokenizer.vocab_size > weights.config.vocab:
        raise ModelError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only "
            f"{weights.config.vocab}"
        )
    chat = None
    if template is not None:
        try:
            chat = ChatTemplate(template, _named_tokens(tokenizer))
        except ModelError as e:
            notices += (f"{_NO_CHAT}{e}",)
    return LoadedModel(weights, tokenizer, chat, tokenizer.special.stop, _name(path), notices)


def _name(path: Path) -> str:
    full = path.resolve()
    return full.name if full.is_dir() else full.stem


def _named_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """What templates call `bos_token` and `eos_token`."""
    ids = {"bos_token": tokenizer.special.bos, "eos_token": tokenizer.special.eos}
    return {name: tokenizer.token_text(i) for name, i in ids.items() if i is not None}
