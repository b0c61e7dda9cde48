"""OpenVINO GenAI's continuous batching behind the least HTTP that the load client needs:
`openvino_server.py MODEL.gguf PORT SEATS`. Its own server is no Python package.

One thread steps the pipeline and hands tokens to the event loop; no priorities, as in the pipeline.
"""

import asyncio
import json
import sys
import threading
from collections import deque

import openvino_genai as genai


class Pipeline:
    """The pipeline, stepped by a thread of its own while there is work."""

    def __init__(self, model, seats, loop):
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_batched_tokens = 256
        scheduler.max_num_seqs = seats
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})
        self.tokenizer = self._pipeline.get_tokenizer()
        self._loop = loop
        self._new = deque()
        self._wake = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def generate(self, prompt, most):
        """A queue of token counts, ended by None."""
        config = genai.GenerationConfig()
        config.max_new_tokens = most
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        tokens = asyncio.Queue()
        self._new.append((prompt, config, tokens))
        self._wake.set()
        return tokens

    def _run(self):
        live, number = [], 0
        while True:
            if not live and not self._new:
                self._wake.wait()
            self._wake.clear()
            while self._new:
                prompt, config, tokens = self._new.popleft()
                live.append((self._pipeline.add_request(number, prompt, config), tokens))
                number += 1
            self._pipeline.step()
            news = []
            for handle, tokens in live:
                count = 0
                while handle.can_read():
                    count += sum(len(o.generated_ids) for o in handle.read().values())
                over = handle.get_status() != genai.GenerationStatus.RUNNING
                news.append((tokens, count, over))
            self._loop.call_soon_threadsafe(deliver, news)
            live = [one for one, (_, _, over) in zip(live, news, strict=True) if not over]


def deliver(news):
    """Give each request its tokens, on the event loop."""
    for tokens, count, over in news:
        if count:
            tokens.put_nowait(count)
        if over:
            tokens.put_nowait(None)


def event(body):
    """A server-sent event in a chunk."""
    data = b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def answer(pipeline, reader, writer):
    """One request a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next((int(h.split(":")[1]) for h in head.split("\r\n") if "content-length" in h), 0)
    body = json.loads(await reader.readexactly(length)) if length else {}
    if head.startswith("get"):
        listed = json.dumps({"data": [{"id": "openvino"}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(listed), listed))
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        prompt = body["prompt"]
        tokens, total = pipeline.generate(prompt, body["max_tokens"]), 0
        while count := await tokens.get():
            total += count
            choice = {"index": 0, "text": "x" * count, "finish_reason": None, "logprobs": None}
            writer.write(event({"choices": [choice]}))
            await writer.drain()
        asked = pipeline.tokenizer.encode(prompt).input_ids.shape[1]
        choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": asked, "completion_tokens": total}
        writer.write(event({"choices": [choice], "usage": usage}) + event(b"[DONE]") + b"0\r\n\r\n")
    await writer.drain()
    writer.close()


async def main():
    """Serve for ever."""
    loop = asyncio.get_running_loop()
    pipeline = Pipeline(sys.argv[1], int(sys.argv[3]), loop)
    server = await asyncio.start_server(
        lambda reader, writer: answer(pipeline, reader, writer), "127.0.0.1", int(sys.argv[2])
    )
    async with server:
        await server.serve_forever()


asyncio.run(main())
