// Prompts with the portkey-ai SDK for Node: rendered, run, and streamed.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Portkey } from "portkey-ai";

const { GATEWAY, KEY, PROMPT } = process.env;
const client = new Portkey({ apiKey: KEY, baseURL: `${GATEWAY}/v1` });
const variables = { name: "Ann" };

test("render", async () => {
  const rendered = await client.prompts.render({ promptID: PROMPT, variables });
  assert.deepEqual(rendered.data.messages, [{ role: "user", content: "Greet Ann" }]);
});

test("completion", async () => {
  const answer = await client.prompts.completions.create({ promptID: PROMPT, variables });
  assert.ok(answer.choices[0].message.content);
});

test("stream of the newest version", async () => {
  const pieces = [];
  const stream = await client.prompts.completions.create({ promptID: `${PROMPT}@latest`, variables, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) pieces.push(chunk.choices[0].delta.content);
  }
  assert.ok(pieces.length > 1);
});
