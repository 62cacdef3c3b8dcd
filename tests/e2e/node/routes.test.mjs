// Every route of the official SDKs for Node through the gateway to the mock.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic, { toFile as toAnthropicFile } from "@anthropic-ai/sdk";
import OpenAI, { toFile } from "openai";

const { GATEWAY } = process.env;
const options = { apiKey: "provider-key", defaultHeaders: { "x-gateway-provider": "mock" }, maxRetries: 0, timeout: 10_000 };
const openai = new OpenAI({ baseURL: `${GATEWAY}/v1`, ...options });
const anthropic = new Anthropic({ baseURL: GATEWAY, ...options });
const messages = [{ role: "user", content: "say something" }];
const sound = () => toFile(Buffer.from("RIFF\r\n--not-a-boundary\r\n\0\xff".repeat(500), "latin1"), "sound.wav");
const picture = () => toFile(Buffer.from("\x89PNG\r\n\x1a\n".repeat(100), "latin1"), "a.png", { type: "image/png" });
const collect = async (stream) => {
  const all = [];
  for await (const one of stream) all.push(one);
  return all;
};
const first = async (page) => (await page).data[0];
const model = "mock";

// Each call returns a true value if the SDK understood the response.
const CALLS = {
  "completions": async () => (await openai.completions.create({ model, prompt: "a" })).choices[0].text,
  "completions, streamed": async () =>
    (await collect(await openai.completions.create({ model, prompt: "a", stream: true }))).length > 2,
  "embeddings": async () => (await first(openai.embeddings.create({ model, input: "a" }))).embedding.length > 0,
  "moderations": async () => (await openai.moderations.create({ model, input: "a" })).results[0].flagged === false,
  "images": async () => (await first(openai.images.generate({ model, prompt: "a" }))).b64_json,
  "images, edited": async () =>
    (await first(openai.images.edit({ prompt: "a", image: [await picture(), await picture()], model }))).b64_json,
  "images, varied": async () => (await first(openai.images.createVariation({ image: await picture(), model }))).b64_json,
  "speech": async () =>
    (await (await openai.audio.speech.create({ model, voice: "alloy", input: "a" })).text()).startsWith("\0ID3"),
  "transcriptions, the file before the model": async () =>
    (await openai.audio.transcriptions.create({ file: await sound(), timestamp_granularities: ["word"], model })).text,
  "transcriptions, streamed": async () =>
    (await collect(await openai.audio.transcriptions.create({ file: await sound(), model, stream: true }))).length === 2,
  "translations": async () => (await openai.audio.translations.create({ model, file: await sound() })).text,
  "models": async () => (await first(openai.models.list())).id,
  "a model": async () => (await openai.models.retrieve("mock-mini")).id === "mock-mini",
  "files, uploaded": async () => (await openai.files.create({ file: await sound(), purpose: "batch" })).object === "file",
  "files": async () => (await openai.files.list({ limit: 2 })).data.length === 0,
  "a file": async () => (await openai.files.retrieve("file-1")).id === "file-1",
  "a file's content": async () => (await (await openai.files.content("file-1")).text()).endsWith("}\n"),
  "a file, deleted": async () => (await openai.files.delete("file-1")).deleted,
  "batches, created": async () =>
    (await openai.batches.create({ input_file_id: "f", endpoint: "/v1/embeddings", completion_window: "24h" })).status,
  "batches": async () => (await openai.batches.list({ limit: 2 })).data.length === 0,
  "a batch": async () => (await openai.batches.retrieve("batch-1")).id === "batch-1",
  "a batch, cancelled": async () => (await openai.batches.cancel("batch-1")).id === "batch-1",
  "tuning": async () => (await openai.fineTuning.jobs.create({ model, training_file: "f" })).status,
  "tunings": async () => (await openai.fineTuning.jobs.list({ limit: 2 })).data.length === 0,
  "a tuning": async () => (await openai.fineTuning.jobs.retrieve("ft-1")).id === "ft-1",
  "a tuning, cancelled": async () => (await openai.fineTuning.jobs.cancel("ft-1")).id === "ft-1",
  "a tuning's events": async () => (await first(openai.fineTuning.jobs.listEvents("ft-1"))).message === "ft-1",
  "a tuning's checkpoints": async () =>
    (await first(openai.fineTuning.jobs.checkpoints.list("ft-1", { after: "k", limit: 4 }))).step_number === 10,
  "responses": async () => (await openai.responses.create({ model, input: "a" })).output_text,
  "responses, streamed": async () =>
    (await collect(await openai.responses.create({ model, input: "a", stream: true }))).at(-1).type === "response.completed",
  "a response": async () => (await openai.responses.retrieve("resp-1")).id === "resp-1",
  "a response's input": async () => (await first(openai.responses.inputItems.list("resp-1"))).role === "user",
  "a response, deleted": async () => (await openai.responses.delete("resp-1").asResponse()).ok,
  "vector stores": async () => (await openai.vectorStores.create({ name: "a" })).object === "vector_store",
  "a vector store, deleted": async () => (await openai.vectorStores.delete("vs-1")).deleted,
  "threads": async () => (await openai.beta.threads.create()).object === "thread",
  "tokens of messages": async () => (await anthropic.messages.countTokens({ model, messages })).input_tokens === 12,
  "batches of messages": async () =>
    (await anthropic.messages.batches.create({ requests: [{ custom_id: "1", params: { model, max_tokens: 9, messages } }] })).id,
  "a batch of messages": async () => (await anthropic.messages.batches.retrieve("b-1")).id === "b-1",
  "Anthropic's models": async () => (await first(anthropic.models.list())).display_name === "mock",
  "Anthropic's files": async () =>
    (await anthropic.beta.files.upload({ file: await toAnthropicFile(Buffer.from("a"), "a.txt") })).downloadable,
  "one of Anthropic's files": async () => (await anthropic.beta.files.delete("f-1")).id === "f-1",
};

for (const [name, call] of Object.entries(CALLS)) test(name, async () => assert.ok(await call()));
