"""llama.cpp through xllamacpp.

    python llama_cpp_worker.py MODEL.gguf THREADS flash|plain|auto unified|split SLOTS TOKENS

Flash attention or not; one KV cache that all slots share, or one each; so many slots with room for
so many tokens each.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import xllamacpp
from loads import serve

path, threads, attention, cache, slots, tokens = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = path
params.n_parallel = int(slots)
params.n_ctx = int(slots) * int(tokens)
params.kv_unified = cache == "unified"
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
kinds = xllamacpp.llama_flash_attn_type
if attention == "flash":
    params.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED
elif attention == "plain":
    params.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
pool = ThreadPoolExecutor(int(slots))


def complete(prompt, new):
    answer = server.handle_completions(
        {
            "prompt": prompt,
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
        }
    )
    if "usage" not in answer:
        raise RuntimeError(str(answer))
    return answer["usage"]


serve(
    lambda prompts, new: list(pool.map(lambda p: complete(p, new), prompts)),
    lambda prompt: complete(prompt, 1)["prompt_tokens"],
)
