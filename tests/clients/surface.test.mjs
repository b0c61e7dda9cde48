// The official client over the whole surface, against the servers that HEADWAY_SERVERS names.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";

const servers = JSON.parse(process.env.HEADWAY_SERVERS);
const model = "tiny";
const messages = [{ role: "user", content: "Oslo?" }];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } } },
  },
};

/** A client of one of the servers. */
const client = (name, options = {}) =>
  new OpenAI({ baseURL: `${servers[name]}/v1`, apiKey: "none", maxRetries: 0, ...options });

test("models", async () => {
  const ids = [];
  for await (const card of client("all").models.list()) ids.push(card.id);
  assert.ok(ids.includes(model));
  assert.equal((await client("all").models.retrieve(model)).max_model_len, 512);
});

test("chat, whole and streamed", async () => {
  const fields = { model, messages, seed: 3, max_tokens: 20 };
  const whole = await client("all").chat.completions.create({ ...fields, n: 2 });
  assert.equal(whole.choices.length, 2);
  assert.equal(whole.usage.completion_tokens, 40);
  const stream = await client("all").chat.completions.create({
    ...fields,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 20);
});

test("text with log probabilities", async () => {
  const answer = await client("all").completions.create({
    model,
    prompt: ["a", "b"],
    max_tokens: 5,
    logprobs: 2,
  });
  assert.deepEqual(
    answer.choices.map((choice) => choice.logprobs.tokens.length),
    [5, 5],
  );
});

test("a stream that the client gives up", async () => {
  const stream = await client("all").chat.completions.create({ model, messages, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    break;
  }
});

test("tools, by the client's own accumulator", async () => {
  const runner = client("tools").chat.completions.stream({ model, messages, tools: [weather] });
  const [call] = (await runner.finalMessage()).tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Oslo", unit: "C" });
  const answer = await client("tools").chat.completions.create({
    model,
    tools: [weather],
    messages: [
      ...messages,
      { role: "assistant", tool_calls: [call] },
      { role: "tool", tool_call_id: call.id, content: "-3" },
    ],
  });
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
});

test("a JSON schema", async () => {
  const schema = {
    type: "object",
    properties: { color: { enum: ["red", "blue"] }, count: { type: "integer", maximum: 9, minimum: 0 } },
    required: ["color", "count"],
    additionalProperties: false,
  };
  const answer = await client("all").chat.completions.parse({
    model,
    messages,
    response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } },
  });
  const parsed = answer.choices[0].message.parsed;
  assert.ok(["red", "blue"].includes(parsed.color));
  assert.ok(Number.isInteger(parsed.count));
});

test("files and batches", async () => {
  const it = client("batches");
  const line = (id) =>
    JSON.stringify({
      custom_id: id,
      method: "POST",
      url: "/v1/completions",
      body: { model, prompt: "x", max_tokens: 3 },
    });
  const file = await it.files.create({
    file: await toFile(Buffer.from(`${line("a")}\n${line("b")}\n`), "in.jsonl"),
    purpose: "batch",
  });
  let batch = await it.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/completions",
    completion_window: "24h",
  });
  while (!["completed", "failed"].includes(batch.status)) {
    await new Promise((done) => setTimeout(done, 50));
    batch = await it.batches.retrieve(batch.id);
  }
  assert.deepEqual(batch.request_counts, { total: 2, completed: 2, failed: 0 });
  const lines = (await (await it.files.content(batch.output_file_id)).text()).trim().split("\n");
  assert.deepEqual(lines.map((text) => JSON.parse(text).custom_id).sort(), ["a", "b"]);
  const names = [];
  for await (const found of it.files.list()) names.push(found.filename);
  assert.ok(names.includes("in.jsonl"));
  assert.equal((await it.files.delete(file.id)).deleted, true);
});

test("errors are the client's own", async () => {
  const chat = client("all").chat.completions;
  await assert.rejects(chat.create({ model, messages, temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
  await assert.rejects(chat.create({ model: "other", messages }), OpenAI.NotFoundError);
  await assert.rejects(client("keyed").models.list(), OpenAI.AuthenticationError);
});

test("an error in the middle of a stream is thrown", async () => {
  const stream = await client("broken").chat.completions.create({ model, messages, stream: true });
  let text = "";
  await assert.rejects(async () => {
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
  }, OpenAI.APIError);
  assert.equal(text, "Hel");
});

test("an overloaded server is asked again", async () => {
  const answer = await client("busy", { maxRetries: 2 }).chat.completions.create({ model, messages });
  assert.equal(answer.choices[0].finish_reason, "stop");
});
