// The portkey-ai SDK for Node: a permanent failure causes no more attempts than the config allows.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Portkey } from "portkey-ai";

const { GATEWAY, MOCK } = process.env;
const messages = [{ role: "user", content: "say something" }];
const client = (config) => new Portkey({ apiKey: "k", baseURL: `${GATEWAY}/v1`, config });
const target = (behaviour, more) => ({ provider: "mock", override_params: { model: `mock?${behaviour}` }, ...more });

async function attempts(work) {
  await fetch(`${MOCK}/_ledger`, { method: "DELETE" });
  await work();
  return (await (await fetch(`${MOCK}/_ledger`)).json()).length;
}

test("chat, whole and streamed, after a fallback", async () => {
  const config = { strategy: { mode: "fallback" }, targets: [target("status=503"), target("chunks=3")] };
  const answer = await client(config).chat.completions.create({ model: "mock", messages });
  assert.ok(answer.choices[0].message.content);
  const pieces = [];
  for await (const chunk of await client(config).chat.completions.create({ model: "mock", messages, stream: true })) {
    if (chunk.choices[0]?.delta?.content) pieces.push(chunk.choices[0].delta.content);
  }
  assert.equal(pieces.length, 3);
});

for (const [config, expected] of [
  [target("status=503", { retry: { attempts: 2 } }), 3],
  [{ strategy: { mode: "fallback" }, targets: [target("status=503"), target("status=429")] }, 2],
]) {
  test(`one failure that stays: ${expected} attempts`, async () => {
    const ask = () => assert.rejects(client(config).chat.completions.create({ model: "mock", messages }));
    assert.equal(await attempts(ask), expected);
  });
}
