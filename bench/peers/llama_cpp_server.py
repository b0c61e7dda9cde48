"""llama.cpp's own HTTP server through xllamacpp.

    python llama_cpp_server.py MODEL.gguf PORT SLOTS [flash|plain|auto] [unified|split]

Flash attention or not; one KV cache that all slots share, or one each. As a rule both as llama.cpp
would have them for a server: auto, unified.
"""

import signal
import sys

import xllamacpp

SLOT_TOKENS = 512  # more than any request of the mixed load has

path, port, slots, *options = sys.argv[1:]
attention, cache = (*options, *("auto", "unified")[len(options) :])
params = xllamacpp.CommonParams()
params.model.path = path
params.hostnames = ["127.0.0.1"]
params.port = int(port)
params.n_parallel = int(slots)
params.n_ctx = int(slots) * SLOT_TOKENS
params.kv_unified = cache == "unified"
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
kinds = xllamacpp.llama_flash_attn_type
if attention == "flash":
    params.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED
elif attention == "plain":
    params.flash_attn_type = kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
signal.pause()
