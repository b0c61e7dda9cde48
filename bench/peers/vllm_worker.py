"""vLLM for CPUs, in process, from a folder by hf_folder.py: `vllm_worker.py FOLDER THREADS`."""

import os
import sys

from loads import own_output, serve

out = own_output()
folder, threads = sys.argv[1], int(sys.argv[2])
cores = sorted(os.sched_getaffinity(0))
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that its CPU time is counted
}
if threads < len(cores):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores[:threads]))

import vllm  # noqa: E402

engine = vllm.LLM(folder, dtype="float32", enforce_eager=True, max_num_seqs=64, max_model_len=2048)
tokenizer = engine.get_tokenizer()


def generate(prompts, new):
    sampling = vllm.SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    return engine.generate(prompts, sampling, use_tqdm=False)


serve(generate, lambda prompt: len(tokenizer.encode(prompt)), out)
