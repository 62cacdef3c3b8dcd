// The official OpenAI and Anthropic SDKs for Node through the gateway to the mock.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { GATEWAY } = process.env;
const options = {
  apiKey: "provider-key",
  defaultHeaders: { "x-gateway-provider": "mock" },
  maxRetries: 0,
  timeout: 10_000,
};
const openai = new OpenAI({ baseURL: `${GATEWAY}/v1`, ...options });
const anthropic = new Anthropic({ baseURL: GATEWAY, ...options });
const messages = [{ role: "user", content: "say something" }];

test("chat, whole", async () => {
  const answer = await openai.chat.completions.create({ model: "mock", messages });
  assert.ok(answer.choices[0].message.content);
  assert.ok(answer.usage.total_tokens > 0);
});

test("chat, streamed", async () => {
  const stream = await openai.chat.completions.create({ model: "mock?chunks=12", messages, stream: true });
  const pieces = [];
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) pieces.push(chunk.choices[0].delta.content);
  }
  assert.equal(pieces.length, 12);
});

test("chat, streamed and left early", async () => {
  const stream = await openai.chat.completions.create({ model: "mock?chunks=1000&chunk_ms=5", messages, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break;
  }
  const after = await openai.chat.completions.create({ model: "mock", messages });
  assert.ok(after.choices[0].message.content);
});

test("messages, whole", async () => {
  const answer = await anthropic.messages.create({ model: "mock", max_tokens: 64, messages });
  assert.ok(answer.content[0].text);
  assert.ok(answer.usage.output_tokens > 0);
});

test("messages, streamed", async () => {
  const stream = anthropic.messages.stream({ model: "mock?chunks=12", max_tokens: 64, messages });
  const pieces = [];
  stream.on("text", (text) => pieces.push(text));
  const final = await stream.finalMessage();
  assert.equal(pieces.length, 12);
  assert.equal(pieces.join(""), final.content[0].text);
});

test("a stream whose pauses the gateway fills with comments", async () => {
  const model = "mock?chunks=4&chunk_ms=150";
  const pieces = [];
  for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true })) {
    if (chunk.choices[0]?.delta?.content) pieces.push(chunk.choices[0].delta.content);
  }
  assert.equal(pieces.length, 4);
  const stream = anthropic.messages.stream({ model, max_tokens: 64, messages });
  const texts = [];
  stream.on("text", (text) => texts.push(text));
  assert.equal((await stream.finalMessage()).stop_reason, "end_turn");
  assert.equal(texts.length, 4);
});

test("a stream that is cut within an event is the SDK's error", async () => {
  const model = "mock?chunks=8&after=4&fault=cut_event";
  const chunks = [];
  const read = async () => {
    for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true })) chunks.push(chunk);
  };
  await assert.rejects(read, (error) => error instanceof OpenAI.APIError && /response broke off/.test(error.message));
  assert.ok(chunks.length >= 4);
  const stream = anthropic.messages.stream({ model, max_tokens: 64, messages });
  const isBreakReported = (error) => error instanceof Anthropic.APIError && /response broke off/.test(error.message);
  await assert.rejects(stream.finalMessage(), isBreakReported);
});

test("a provider's error is the SDK's error", async () => {
  const request = openai.chat.completions.create({ model: "mock?fault=429", messages });
  await assert.rejects(request, OpenAI.RateLimitError);
});
