// The official SDKs through the gateway to aimock, a third-party mock provider.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI, { toFile } from "openai";

const { GATEWAY, AIMOCK } = process.env;
const RESPONSE_TEXT = "Sunny, with a light wind from the west and no cloud before the evening.";
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
  assert.equal(answer.choices[0].message.content, RESPONSE_TEXT);
});

test("chat, streamed", async () => {
  const stream = await openai.chat.completions.create({ model: "gpt-4o", messages, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, RESPONSE_TEXT);
});

test("chat, streamed tool call", async () => {
  const messages = [{ role: "user", content: "what time is it?" }];
  const stream = openai.chat.completions.stream({ model: "gpt-4o", messages });
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "clock");
  assert.deepEqual(JSON.parse(call.function.arguments), { zone: "UTC" });
});

const DIALECTS = [
  ["anthropic", "/v1", {}],
  ["google", "", {}],
  ["bedrock", "", { "x-gateway-aws-region": "eu-west-1" }],
  ["cohere", "", {}],
];
for (const [provider, prefix, beside] of DIALECTS) {
  const headers = { "x-gateway-provider": provider, "x-gateway-custom-host": `${AIMOCK}${prefix}`, ...beside };
  const client = new OpenAI({ ...options("openai"), baseURL: `${GATEWAY}/v1`, defaultHeaders: headers });

  test(`chat in the dialect of ${provider}, streamed as whole`, async () => {
    const answer = await client.chat.completions.create({ model: "a-model", messages });
    assert.equal(answer.choices[0].message.content, RESPONSE_TEXT);
    const stream = await client.chat.completions.create({ model: "a-model", messages, stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    assert.equal(text, RESPONSE_TEXT);
  });

  test(`a tool call in the dialect of ${provider}, streamed`, async () => {
    const question = [{ role: "user", content: "what time is it?" }];
    const final = await client.chat.completions.stream({ model: "a-model", messages: question }).finalChatCompletion();
    const [call] = final.choices[0].message.tool_calls;
    assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["clock", { zone: "UTC" }]);
    assert.equal(final.choices[0].finish_reason, "tool_calls");
  });
}

test("messages, whole", async () => {
  const answer = await anthropic.messages.create({ model: "claude-test", max_tokens: 64, messages });
  assert.equal(answer.content[0].text, RESPONSE_TEXT);
});

test("messages, streamed", async () => {
  const stream = anthropic.messages.stream({ model: "claude-test", max_tokens: 64, messages });
  const final = await stream.finalMessage();
  assert.equal(final.content[0].text, RESPONSE_TEXT);
});

test("responses, streamed, passes through as it is", async () => {
  const stream = await openai.responses.create({ model: "gpt-4o", input: "how is the weather?", stream: true });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert.equal(text, RESPONSE_TEXT);
});

test("embeddings pass through as they are", async () => {
  const answer = await openai.embeddings.create({ model: "text-embedding-3-small", input: "a short text" });
  assert.ok(answer.data[0].embedding.length > 0);
});

const sound = () => toFile(Buffer.from("RIFF\r\n--not-a-boundary\r\n\0\xff".repeat(500), "latin1"), "sound.wav");

test("audio goes both ways", async () => {
  const speech = await openai.audio.speech.create({ model: "tts-1", voice: "alloy", input: "how is the weather?" });
  assert.equal(Buffer.from(await speech.arrayBuffer()).toString(), "pretend");
  const transcription = await openai.audio.transcriptions.create({ file: await sound(), model: "whisper-1" });
  const translated = await openai.audio.translations.create({ model: "whisper-1", file: await sound() });
  assert.deepEqual([transcription.text, translated.text], ["Sunny.", "Sunny."]);
});

test("images are made and edited", async () => {
  const made = await openai.images.generate({ model: "gpt-image-1", prompt: "the weather" });
  const edited = await openai.images.edit({ image: [await sound(), await sound()], model: "gpt-image-1", prompt: "rain" });
  assert.deepEqual([made.data[0].b64_json, edited.data[0].b64_json], ["cHJldGVuZA==", "cHJldGVuZA=="]);
});

test("a file comes back as it was sent, and is gone when it is deleted", async () => {
  const rows = '{"custom_id": "1"}\r\n\u{1F300}\n'.repeat(2000);
  const sent = await openai.files.create({ file: await toFile(Buffer.from(rows), "rows.jsonl"), purpose: "batch" });
  assert.equal(sent.bytes, Buffer.byteLength(rows));
  assert.equal(await (await openai.files.content(sent.id)).text(), rows);
  assert.equal((await openai.files.list()).data[0].id, sent.id);
  await openai.files.delete(sent.id);
  await assert.rejects(openai.files.retrieve(sent.id), OpenAI.NotFoundError);
});

test("a batch and a tuning live and are cancelled", async () => {
  const { id } = await openai.files.create({ file: await toFile(Buffer.from("{}\n"), "rows.jsonl"), purpose: "fine-tune" });
  const batchFields = { input_file_id: id, endpoint: "/v1/chat/completions", completion_window: "24h" };
  const batch = await openai.batches.create(batchFields);
  assert.equal((await openai.batches.retrieve(batch.id)).id, batch.id);
  const job = await openai.fineTuning.jobs.create({ model: "gpt-4o-mini", training_file: id });
  assert.equal((await openai.fineTuning.jobs.retrieve(job.id)).id, job.id);
});

test("moderations and models", async () => {
  assert.equal((await openai.moderations.create({ input: "rain" })).results[0].flagged, false);
  assert.ok((await openai.models.list()).data.length > 0);
});
