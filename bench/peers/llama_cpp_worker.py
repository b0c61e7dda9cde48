"""llama.cpp through xllamacpp: 64 slots, unified KV cache, flash attention if asked for."""

import sys
from concurrent.futures import ThreadPoolExecutor

import xllamacpp
from loads import serve

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_parallel = 64
params.n_ctx = 16384
params.kv_unified = True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
if sys.argv[2:] and sys.argv[2] != "auto":
    kinds = xllamacpp.llama_flash_attn_type
    on = sys.argv[2] == "flash"
    params.flash_attn_type = (
        kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if on else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
server = xllamacpp.Server(params)
pool = ThreadPoolExecutor(64)


def complete(prompt, new):
    answer = server.handle_completions(
        {
            "prompt": prompt,
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
    )
    if "usage" not in answer:
        raise RuntimeError(str(answer))
    return answer["usage"]


serve(
    lambda prompts, new: list(pool.map(lambda p: complete(p, new), prompts)),
    lambda prompt: complete(prompt, 1)["prompt_tokens"],
)
