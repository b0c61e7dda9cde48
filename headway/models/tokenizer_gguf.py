"""Tokenizers from GGUF metadata.

Supported kinds (`tokenizer.ggml.model`, `tokenizer.ggml.pre`):

    gpt2, gpt-2                                   byte-level BPE, GPT-2's words
    gpt2, smollm | starcoder | refact | command-r | codeshell
                                                  the same, each digit a word
    gpt2, llama-bpe | llama3 | llama-v3 | falcon3 Llama 3's words, whole words looked up first
    gpt2, qwen2 | deepseek-r1-qwen                Qwen's words, text in normal form C
    llama                                         SentencePiece BPE with byte fallback

Others are refused by name: a wrong split gives other tokens and no error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from headway.errors import ModelError
from headway.models.gguf import Metadata
from headway.models.tokenizer import SpecialIds, Spelling, Tokenizer, guarded

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
"""Token types of `tokenizer.ggml.token_type`; 1 is an ordinary token."""

_ENDINGS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")
"""Control tokens that end a turn or a text whatever the file says of them: files name one end of
sequence, yet chat models of these families answer with either."""

_TAIL = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"


@dataclass(frozen=True, slots=True)
class _Words:
    """A pre-tokenizer of the byte-level kind.

    pattern: what a word is; None for GPT-2's own.
    single_digits: split each digit off first.
    whole_words: a word that is in the vocabulary is one token, whatever the merges say.
    begins: whether beginning of sequence is put first where the file does not say.
    nfc: whether text is brought to normal form C.
    """

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    begins: bool = False
    nfc: bool = False


_GPT2 = _Words()
_DIGITS = _Words(single_digits=True)
_LLAMA3 = _Words(_CONTRACTIONS + _TAIL % r"\p{N}{1,3}", whole_words=True, begins=True)
_QWEN = _Words(_CONTRACTIONS + _TAIL % r"\p{N}", nfc=True)
_WORDS = {
    **dict.fromkeys(("gpt-2", "gpt2"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN),
}


def load_tokenizer_gguf(metadata: Metadata) -> Tokenizer:
    """The tokenizer a GGUF file carries: about 0.1 s for 50,000 tokens.

    Raises ModelError for kinds that are not supported, and for tables that do not fit together.
    """
    model = metadata.string("tokenizer.ggml.model")
    table = _Table.read(metadata)
    if model == "gpt2":
        return _byte_level(metadata, table)
    if model == "llama":
        return _sentencepiece(metadata, table)
    raise ModelError(f"GGUF: tokenizer {model[:64]!r} is not supported (gpt2 and llama are)")


@dataclass(frozen=True, slots=True)
class _Table:
    """The vocabulary: names by id, and each token's type."""

    tokens: list[str]
    types: list[int]

    @staticmethod
    def read(metadata: Metadata) -> "_Table":
        tokens = metadata.strings("tokenizer.ggml.tokens")
        if "tokenizer.ggml.token_type" not in metadata:
            return _Table(tokens, [1] * len(tokens))
        types = metadata.numbers("tokenizer.ggml.token_type")
        if len(types) != len(tokens):
            raise ModelError(f"GGUF: {len(types)} token types for {len(tokens)} tokens")
        return _Table(tokens, [int(kind) for kind in types.tolist()])

    def vocabulary(self) -> dict[str, int]:
        """Ids by name. Unused slots are left out: no text may become one."""
        return {
            token: i
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind != _UNUSED
        }

    def add_named(self, core: tokenizers.Tokenizer) -> None:
        """Make control and user-defined tokens match as a whole, before any word is split."""
        added = {_CONTROL: True, _USER_DEFINED: False}
        core.add_tokens(
            [
                tokenizers.AddedToken(token, normalized=False, special=added[kind])
                for token, kind in zip(self.tokens, self.types, strict=True)
                if kind in added and token
            ]
        )


def _byte_level(metadata: Metadata, table: _Table) -> Tokenizer:
    name = metadata.string("tokenizer.ggml.pre", "none")
    words = _WORDS.get(name)
    if words is None:
        known = ", ".join(_WORDS)
        raise ModelError(f"GGUF: pre-tokenizer {name[:64]!r} is not supported ({known} are)")
    merges = [_pair(line) for line in metadata.strings("tokenizer.ggml.merges")]
    bpe = partial(
        models.BPE, table.vocabulary(), merges, ignore_merges=words.whole_words, fuse_unk=False
    )
    core = tokenizers.Tokenizer(guarded(bpe, "GGUF: tokenizer"))
    if words.nfc:
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(_splitters(words))
    core.decoder = decoders.ByteLevel()
    return _finished(metadata, table, core, Spelling.BYTE_LEVEL, words.begins)


def _pair(merge: str) -> tuple[str, str]:
    # Byte-level pieces hold no spaces, so the only one stands between the two.
    left, space, right = merge.partition(" ")
    if not space:
        raise ModelError(f"GGUF: {merge[:64]!r} is not a merge of two pieces")
    return left, right


def _splitters(words: _Words) -> list[pre_tokenizers.PreTokenizer]:
    splitters: list[pre_tokenizers.PreTokenizer] = []
    if words.single_digits:
        splitters.append(pre_tokenizers.Digits(individual_digits=True))
    if words.pattern:
        splitters.append(pre_tokenizers.Split(tokenizers.Regex(words.pattern), "isolated"))
    splitters.append(
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.pattern is None)
    )
    return splitters


def _sentencepiece(metadata: Metadata, table: _Table) -> Tokenizer:
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(table.tokens):
        raise ModelError(f"GGUF: {len(scores)} scores for {len(table.tokens)} tokens")
    unknown = next((i for i, kind in enumerate(table.types) if kind == _UNKNOWN), None)
    bpe = partial(
        models.BPE,
        table.vocabulary(),
        _merges_by_score(table, scores.astype(np.float64).tolist()),
        unk_token=None if unknown is None else table.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    core = tokenizers.Tokenizer(guarded(bpe, "GGUF: tokenizer"))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    if metadata.flag("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("\u2581"))
    core.normalizer = normalizers.Sequence(spaces)
    core.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _finished(metadata, table, core, Spelling.SENTENCEPIECE, begins=True)


def _merges_by_score(table: _Table, scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores highest. As BPE: every way to cut a
    piece in two pieces is a merge, higher scores first, equal ones in order of the ids."""
    ids = {
        token: i
        for i, (token, kind) in enumerate(zip(table.tokens, table.types, strict=True))
        if kind not in (_UNKNOWN, _CONTROL, _UNUSED, _BYTE)
    }
    ranked = []
    for piece, i in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[i], i, ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _finished(
    metadata: Metadata,
    table: _Table,
    core: tokenizers.Tokenizer,
    spelling: Spelling,
    begins: bool,
) -> Tokenizer:
    """Add named tokens, what is put around a text, and the ids with a meaning."""
    table.add_named(core)
    named = {name: _special_id(metadata, table, name) for name in ("bos", "eos", "eot", "eom")}
    bos, eos = named["bos"], named["eos"]
    frame = ["$A"]
    if bos is not None and metadata.flag("tokenizer.ggml.add_bos_token", begins):
        frame.insert(0, table.tokens[bos])
    if eos is not None and metadata.flag("tokenizer.ggml.add_eos_token", False):
        frame.append(table.tokens[eos])
    if len(frame) > 1:
        around = [(table.tokens[i], i) for i in {bos, eos} if i is not None]
        make = partial(processors.TemplateProcessing, single=frame, special_tokens=around)
        core.post_processor = guarded(make, "GGUF: tokenizer")
    stop = {named[name] for name in ("eos", "eot", "eom")}
    controls = [i for i, kind in enumerate(table.types) if kind == _CONTROL]
    stop.update(i for i in controls if table.tokens[i] in _ENDINGS)
    ids = frozenset(i for i in stop if i is not None)
    return Tokenizer(core, spelling, SpecialIds(bos, eos, ids), len(table.tokens))


def _special_id(metadata: Metadata, table: _Table, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in metadata:
        return None
    value = metadata.integer(key)
    if not 0 <= value < len(table.tokens):
        raise ModelError(f"GGUF: {key} is {value}, outside the vocabulary")
    return value
