"""OpenVINO GenAI, continuous batching, from the same GGUF file."""

import sys

import openvino_genai as genai
from loads import serve

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 3  # GB
scheduler.max_num_batched_tokens = 256
scheduler.max_num_seqs = 64
scheduler.dynamic_split_fuse = True
scheduler.enable_prefix_caching = True
pipeline = genai.ContinuousBatchingPipeline(
    sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": int(sys.argv[2])}
)
tokenizer = pipeline.get_tokenizer()


def config(new):
    made = genai.GenerationConfig()
    made.max_new_tokens = new
    made.ignore_eos = True
    made.do_sample = False
    made.apply_chat_template = False
    return made


serve(
    lambda prompts, new: pipeline.generate(prompts, [config(new)] * len(prompts)),
    lambda prompt: tokenizer.encode(prompt).input_ids.shape[1],
)
