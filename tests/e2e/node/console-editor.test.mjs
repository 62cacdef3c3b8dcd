// The editor of configs in the browser: completion, marks, the picture of the routing tree, explanations.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, createSession, expectCount, expectText, openSignedIn, until } from "./console-kit.mjs";

const { PICTURES, WORKSPACE } = process.env;
const TREE = {
  strategy: { mode: "fallback" },
  targets: [
    { provider: "@mock-main", retry: { attempts: 2 } },
    { strategy: { mode: "loadbalance" }, targets: [{ provider: "mock", weight: 3 }, { provider: "mock", weight: 1 }] },
  ],
};

async function openConfig(config) {
  const made = await callApi("POST", "/v1/configs", { name: "of the editor", config, workspace_id: WORKSPACE });
  const tab = await openSignedIn(`configs/${made.id}`);
  await tab.page.locator(".cm-content").waitFor();
  return tab;
}

test("completes keys and values of a config from its schema", async () => {
  const { page, context, faults } = await openConfig({ provider: "mock" });
  const editor = page.locator(".cm-content");
  await editor.press("Control+End");
  await editor.press("Backspace");
  await page.keyboard.insertText(",\n  ");
  await page.keyboard.type('"retr');
  const offers = page.locator(".cm-tooltip-autocomplete");
  await offers.getByText("retry", { exact: true }).waitFor();
  await offers.getByText("retry", { exact: true }).click();
  await page.keyboard.type('"att');
  await offers.getByText("attempts", { exact: true }).waitFor();
  await page.keyboard.press("Escape");
  await editor.fill('{"provider": "@mo"}');
  await editor.press("Control+End");
  await editor.press("ArrowLeft");
  await editor.press("ArrowLeft");
  await page.keyboard.press("Control+Space");
  await offers.getByText("@mock-main", { exact: true }).click();
  await expectText(editor, /^\{"provider": "@mock-main"\}$/);
  await editor.fill('{"strategy": {"mode": }}');
  for (const key of ["Control+End", "ArrowLeft", "ArrowLeft", "Control+Space"]) await editor.press(key);
  for (const mode of ["fallback", "loadbalance", "conditional"]) await offers.getByText(mode, { exact: true }).waitFor();
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("400 ")), []);
  await context.close();
});

test("marks what is wrong in a config, and draws its routing tree", async () => {
  const { page, context, faults } = await openConfig(TREE);
  const tree = page.getByRole("region", { name: "Routing tree" });
  for (const text of ["Fallback", "first", "@mock-main", "2 retries", "Load balancing", "75 %", "25 %"]) await tree.getByText(text, { exact: true }).first().waitFor();
  if (PICTURES) await page.screenshot({ path: `${PICTURES}/config-tree.png` });
  await page.locator(".cm-content").fill('{"provider": "mock", "retry": {"atempts": 1}}');
  const mark = page.locator(".cm-lintRange-error");
  await mark.first().waitFor();
  await until("the mark", async () => (await mark.allTextContents()).join().includes("atempts"));
  await mark.filter({ hasText: "atempts" }).first().hover();
  await page.getByText("config.retry.atempts is not a known key").waitFor();
  await page.locator(".cm-content").fill('{"provider": "mock" "retry"}');
  await page.getByText(/Line 1, column \d+/).waitFor();
  await tree.getByText("mock", { exact: true }).waitFor();
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("400 ")), []);
  await context.close();
});

test("explains a request in the picture of the routing tree", async () => {
  const { page, context, faults } = await openConfig(TREE);
  await page.getByRole("tab", { name: "Explain" }).click();
  await page.getByRole("button", { name: "Make one for an hour" }).click();
  await page.getByRole("button", { name: "Explain" }).click();
  const tree = page.getByRole("region", { name: "Routing tree" });
  await tree.getByText("1", { exact: true }).waitFor();
  await expectCount(tree.locator(".chosen"), 2);
  await page.getByText("loadbalance", { exact: false }).first().waitFor();
  // The workers may reject a new key with 401 for a moment.
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("401 ")), []);
  await context.close();
});

test("saves and signs out after another tab has signed in", async () => {
  const { page, context, faults } = await openConfig(TREE);
  const renew = async () => context.addCookies([await createSession()]);
  await page.locator(".cm-content").fill('{"provider": "mock"}');
  await renew();
  await page.getByRole("button", { name: /^Save/ }).click();
  await page.getByText("Saved", { exact: true }).waitFor();
  await renew();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForSelector("input[name=key]");
  // The first attempts to save and to check the config have the token of the first session.
  assert.deepEqual([...new Set(faults.map((fault) => fault.slice(0, 3)))].filter((status) => status !== "401"), ["403"]);
  await context.close();
});
