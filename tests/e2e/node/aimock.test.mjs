// The official SDKs through the gateway to a pretend provider that nobody here wrote.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { GATEWAY, AIMOCK } = process.env;
const SAID = "Sunny, with a light wind from the west and no cloud before the evening.";
const messages = [{ role: "user", content: "how is the weather?" }];

const options = (provider) => ({
  apiKey: "provider-key",
  defaultHeaders: { "x-gateway-provider": provider, "x-gateway-custom-host": `${AIMOCK}/v1` },
  maxRetries: 0,
  timeout: 10_000,
});
const openai = new OpenAI({ baseURL: `${GATEWAY}/v1`, ...options("openai") });
const anthropic = new Anthropic({ baseURL: GATEWAY, ...options("anthropic") });

test("chat, whole", async () => {
  const answer = await openai.chat.completions.create({ model: "gpt-4o", messages });
  assert.equal(answer.choices[0].message.content, SAID);
});

test("chat, streamed", async () => {
  const stream = await openai.chat.completions.create({ model: "gpt-4o", messages, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, SAID);
});

test("chat, streamed tool call", async () => {
  const asked = [{ role: "user", content: "what time is it?" }];
  const stream = openai.chat.completions.stream({ model: "gpt-4o", messages: asked });
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "clock");
  assert.deepEqual(JSON.parse(call.function.arguments), { zone: "UTC" });
});

test("messages, whole", async () => {
  const answer = await anthropic.messages.create({ model: "claude-test", max_tokens: 64, messages });
  assert.equal(answer.content[0].text, SAID);
});

test("messages, streamed", async () => {
  const stream = anthropic.messages.stream({ model: "claude-test", max_tokens: 64, messages });
  const final = await stream.finalMessage();
  assert.equal(final.content[0].text, SAID);
});

test("responses, streamed, passes through as it is", async () => {
  const stream = await openai.responses.create({ model: "gpt-4o", input: "how is the weather?", stream: true });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert.equal(text, SAID);
});

test("embeddings pass through as they are", async () => {
  const answer = await openai.embeddings.create({ model: "text-embedding-3-small", input: "a short text" });
  assert.ok(answer.data[0].embedding.length > 0);
});
