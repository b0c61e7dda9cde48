"""llama.cpp's own HTTP server through xllamacpp: `llama_cpp_server.py MODEL.gguf PORT SLOTS`."""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = int(sys.argv[3])
params.n_ctx = 16384
params.kv_unified = True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
server = xllamacpp.Server(params)
signal.pause()
