// Times of the console in the browser. Needs a quiet machine, so it is no part of the other browser tests.
import assert from "node:assert/strict";
import { test } from "node:test";

import { openSignedIn, openTab, replaceResponses, signIn } from "./console-kit.mjs";

const { GATEWAY, LOG } = process.env;
const THROTTLE = 4;
const LOADS = 9;
const MAX_USABLE_MS = 300;
const BODY_CHARS = 20 * 1024 * 1024;
const MAX_TASK_MS = 50;

test("is usable soon on a slow processor", async (context_) => {
  const { page, context } = await openSignedIn();
  await context.addInitScript(() => {
    const observer = new MutationObserver(() => {
      if (!document.querySelector("nav .pages a") || !document.querySelector("main h1")) return;
      window.usableAt ??= performance.now();
      observer.disconnect();
    });
    observer.observe(document, { childList: true, subtree: true });
  });
  const session = await context.newCDPSession(page);
  await session.send("Emulation.setCPUThrottlingRate", { rate: THROTTLE });
  const times = [];
  for (let load = 0; load < LOADS; load += 1) {
    await page.goto(`${GATEWAY}/console/overview`);
    await page.waitForSelector("main h1");
    times.push(await page.evaluate(() => window.usableAt));
  }
  const best = Math.min(...times);
  context_.diagnostic(`usable after ${Math.round(best)} ms at best (${times.map(Math.round).join(", ")})`);
  assert.ok(best <= MAX_USABLE_MS, `usable after ${best} ms`);
  await context.close();
});

test("opens a body of 20 MB without a long task", async (context_) => {
  const tab = await openTab();
  await tab.context.addInitScript(replaceResponses, { bodyChars: BODY_CHARS, log: LOG });
  await tab.page.goto(`${GATEWAY}/console/logs`);
  await signIn(tab.page);
  const { page } = tab;
  await page.locator("table[aria-label=Logs] tbody tr").first().waitFor();
  // The pretended response is built by the page itself, which takes a long task; it is ready before the measurement.
  await page.evaluate(async (id) => {
    const text = await (await fetch(`/v1/logs/${id}?workspace_slug=*`)).text();
    const encoded = new TextEncoder().encode(text);
    const send = window.fetch.bind(window);
    window.fetch = async (input, options) => {
      const url = new URL(input.url ?? input, location.href);
      if (!url.pathname.endsWith(`/v1/logs/${id}`)) return send(input, options);
      return new Response(encoded.buffer, { headers: { "content-type": "application/json" } });
    };
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: "longtask" });
  }, LOG);
  await page.locator(`table[aria-label=Logs] tbody tr`).last().click();
  await page.getByRole("tab", { name: "Request" }).click();
  await page.getByText(/Body from the client: 64.* of 2\d.* shown/).waitFor();
  await page.getByRole("button", { name: /^Show .* more$/ }).click();
  await page.getByText(/Body from the client: 1\d\d.* of 2\d.* shown/).waitFor();
  const tasks = await page.evaluate(() => window.tasks);
  context_.diagnostic(`longest task with a body of 20 MB: ${Math.round(Math.max(0, ...tasks))} ms`);
  assert.ok(Math.max(0, ...tasks) <= MAX_TASK_MS, `tasks of ${tasks.map(Math.round).join(", ")} ms`);
  await tab.context.close();
});
