"""Writes a Llama of random Q4_0 weights in a given shape: what speed needs, and no more.

    python bench/peers/random_gguf.py TOKENIZER.gguf llama-3.2-1b OUT.gguf

The tokenizer is that of the first file, with unused tokens added up to the shape's vocabulary.
Weights repeat every 16 MiB and keep activations near 1, so that every engine loads and runs the
file; what it writes means nothing.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

BLOCK, BLOCK_BYTES = 32, 18
REPEAT_BLOCKS = (16 << 20) // BLOCK_BYTES
TOKENIZER_LISTS = {
    "tokenizer.ggml.tokens": "[unused{}]",
    "tokenizer.ggml.token_type": gguf.TokenType.UNUSED,
    "tokenizer.ggml.scores": 0.0,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of the Llama family; sizes in elements."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool


SHAPES = {
    "llama-3.2-1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, tied=True),
    "llama-3.1-8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, tied=False),
}


def matrices(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of each quantised tensor."""
    yield "token_embd.weight", shape.vocab, shape.hidden
    if not shape.tied:
        yield "output.weight", shape.vocab, shape.hidden
    q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for i in range(shape.layers):
        yield f"blk.{i}.attn_q.weight", q_size, shape.hidden
        yield f"blk.{i}.attn_k.weight", kv_size, shape.hidden
        yield f"blk.{i}.attn_v.weight", kv_size, shape.hidden
        yield f"blk.{i}.attn_output.weight", shape.hidden, q_size
        yield f"blk.{i}.ffn_gate.weight", shape.intermediate, shape.hidden
        yield f"blk.{i}.ffn_up.weight", shape.intermediate, shape.hidden
        yield f"blk.{i}.ffn_down.weight", shape.hidden, shape.intermediate


def norms(shape: Shape) -> Iterator[str]:
    """Names of the vectors of ones."""
    yield "output_norm.weight"
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight"
        yield f"blk.{i}.ffn_norm.weight"


def random_blocks(cols: int) -> Bytes:
    """Q4_0 blocks whose rows of `cols` weights have about unit length."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (REPEAT_BLOCKS, BLOCK_BYTES), dtype=np.uint8)
    scale = np.float16(1 / (4.6 * cols**0.5))  # quants from -8 to 7 deviate by 4.6
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks


def matrix(rows: int, cols: int) -> Bytes:
    """Random blocks, repeated as often as it takes."""
    count = rows * cols // BLOCK
    source = random_blocks(cols)
    whole = np.resize(source, (count, BLOCK_BYTES))
    return whole.reshape(rows, cols // BLOCK * BLOCK_BYTES)


def copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, vocab: int) -> None:
    """The reader's tokenizer, its lists filled up to `vocab` entries."""
    for field in reader.fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        if field.name in TOKENIZER_LISTS:
            filler = TOKENIZER_LISTS[field.name]
            more = range(len(value), vocab)
            value += [filler.format(i) if isinstance(filler, str) else filler for i in more]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, value)
        else:
            writer.add_key_value(field.name, value, kind)


def describe(writer: gguf.GGUFWriter, name: str, shape: Shape) -> None:
    """The shape as the keys that loaders look for."""
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(8192)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def write(tokenizer: Path, name: str, out: Path) -> None:
    """The file; one tensor at a time in memory."""
    shape, kind = SHAPES[name], gguf.GGMLQuantizationType.Q4_0
    writer = gguf.GGUFWriter(out, "llama")
    describe(writer, name, shape)
    copy_tokenizer(gguf.GGUFReader(tokenizer), writer, shape.vocab)
    for tensor, rows, cols in matrices(shape):
        row_bytes = cols // BLOCK * BLOCK_BYTES
        byte_shape = (rows, row_bytes)
        writer.add_tensor_info(tensor, byte_shape, np.dtype(np.uint8), rows * row_bytes, kind)
    ones = np.ones(shape.hidden, np.float32)
    for tensor in norms(shape):
        writer.add_tensor_info(tensor, ones.shape, ones.dtype, ones.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, rows, cols in matrices(shape):
        writer.write_tensor_data(matrix(rows, cols))
    for _ in norms(shape):
        writer.write_tensor_data(ones)
    writer.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path, metavar="TOKENIZER.gguf")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    args = parser.parse_args()
    if args.out.exists():
        sys.exit(f"{args.out} exists")
    write(args.tokenizer, args.shape, args.out)


if __name__ == "__main__":
    main()
