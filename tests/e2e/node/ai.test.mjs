// Vercel's AI SDK, by its packages for OpenAI and for Anthropic, through the gateway to a provider of each API format.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { GATEWAY, KEY, PROVIDERS } = process.env;
const TEXT = "Hello from the pretend provider: all is well. ";
const baseURL = `${GATEWAY}/v1`;
const prompt = "say something";

const asking = (fields) => ({ ...fields, "x-gateway-forward-headers": Object.keys(fields).join(",") });
const calling = asking({ "x-mock-call": "weather", "x-mock-arguments": JSON.stringify({ city: "Oslo" }) });

// The same model through three client APIs: responses, chat completions and messages.
const openai = (headers) => createOpenAI({ baseURL, apiKey: KEY, headers });
const makers = {
  responses: (name, headers) => openai(headers).responses(name),
  chat: (name, headers) => openai(headers).chat(name),
  messages: (name, headers) => createAnthropic({ baseURL, apiKey: KEY, headers })(name),
};

for (const provider of PROVIDERS.split(" ")) {
  for (const [way, make] of Object.entries(makers)) {
    const model = (headers = {}) => make(`@${provider}/mock`, headers);
    // Earlier messages are sent again, because only OpenAI itself stores them.
    const providerOptions = { openai: { store: false } };
    const named = `${way} to ${provider}`;

    test(`${named}, streamed as whole`, async () => {
      const whole = await generateText({ model: model(), prompt, maxRetries: 0 });
      const { inputTokens, outputTokens } = whole.usage;
      assert.deepEqual([whole.text, inputTokens, outputTokens], [TEXT, 12, 8]);
      const stream = streamText({ model: model(), prompt, maxRetries: 0 });
      let text = "";
      for await (const piece of stream.textStream) text += piece;
      const usage = await stream.usage;
      assert.deepEqual([text, usage.inputTokens, usage.outputTokens], [TEXT, 12, 8]);
    });

    test(`${named}, a tool that is called and answers`, async () => {
      const requests = [];
      const weather = tool({
        description: "The weather",
        inputSchema: z.object({ city: z.string() }),
        execute: async (input) => requests.push(input) && "rain",
      });
      const tools = { weather };
      const model_ = model(calling);
      const stopWhen = stepCountIs(3);
      const answer = await generateText({ model: model_, prompt, tools, stopWhen, providerOptions, maxRetries: 0 });
      assert.deepEqual([requests, answer.steps.length, answer.text], [[{ city: "Oslo" }], 2, TEXT]);
    });

    test(`${named}, an error`, async () => {
      const failing = generateText({ model: model(asking({ "x-mock-status": "429" })), prompt, maxRetries: 0 });
      await assert.rejects(failing, (error) => APICallError.isInstance(error) && error.statusCode === 429);
    });
  }
}
