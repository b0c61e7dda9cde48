"""The same model with its Q4_1 tensors in Q4_0, the 4-bit format that llama.cpp repacks for AVX.

    python bench/peers/q4_0_gguf.py MODEL.gguf OUT.gguf

Values change a little: Q4_0 has no minimum. Everything else stays as it is.
"""

import sys
from pathlib import Path

import gguf
from gguf.quants import dequantize, quantize

FROM, TO = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q4_0
BY_WRITER = ("GGUF.", "general.architecture", "general.file_type")


def requantise(source: Path, out: Path) -> None:
    """Write `out`, which is there only once it is whole."""
    reader = gguf.GGUFReader(source)
    unfinished = out.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, reader.fields["general.architecture"].contents())
    copy_metadata(reader, writer)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for tensor in reader.tensors:
        if tensor.tensor_type is FROM:
            values = dequantize(tensor.data, FROM)
            writer.add_tensor(tensor.name, quantize(values, TO), raw_dtype=TO)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(out)


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """All keys but those that the writer makes itself, and the type of the file."""
    for name, stored in reader.fields.items():
        if name.startswith(BY_WRITER):
            continue
        (kind, *of_items), value = stored.types, stored.contents()
        if not of_items:
            writer.add_key_value(name, value, kind)
        elif value:  # the writer takes no empty lists
            writer.add_key_value(name, value, kind, of_items[-1])


if __name__ == "__main__":
    requantise(Path(sys.argv[1]), Path(sys.argv[2]))
