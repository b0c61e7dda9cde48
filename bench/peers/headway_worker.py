"""Headway, in process."""

import sys
from pathlib import Path

from loads import serve

from headway import LLM, SamplingParams
from headway.models.loader import load_model

path = sys.argv[1]
codec = load_model(Path(path)).tokenizer
with LLM(path, kv_blocks=4096, max_seqs=64, threads=int(sys.argv[2])) as llm:
    serve(
        lambda prompts, new: llm.generate(
            prompts, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        ),
        lambda prompt: len(codec.encode(prompt, True)),
    )
