// Habits of the console: the tour, the keyboard alone, narrow windows, time zones, changed fields, a running load.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, expectCount, expectText, goTo, openPage, openSignedIn, openTab, recordBodies, refreshUntil, sendChat, settle, until } from "./console-kit.mjs";

const { GATEWAY, ADMIN_KEY, GUARDRAIL, LOG, WORKSPACE } = process.env;
const MAX_DOM_ROWS = 300;

test("guides a new workspace to its first request in three steps", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Toured" });
  const { page, context, faults } = await openSignedIn(`overview?ws=${slug}`);
  await page.getByText("Three steps to the first one").waitFor();
  await settle(page);
  assert.equal(await page.locator("main .badge.good").count(), 0);

  await page.getByRole("link", { name: "Add a provider" }).click();
  const dialog = page.locator("dialog");
  await dialog.getByLabel("Company or server").selectOption("mock");
  await dialog.getByLabel("API key of the provider").fill("sk-of-the-tour-0123456789");
  await dialog.getByLabel("Slug").fill("toured");
  await dialog.getByRole("button", { name: "Add" }).click();
  await page.getByRole("link", { name: "@toured" }).waitFor();

  await page.goto(`${GATEWAY}/console/overview?ws=${slug}`);
  await page.locator("main .badge.good").first().waitFor();
  await page.getByRole("link", { name: "Create a key" }).click();
  await dialog.getByLabel("Name", { exact: true }).fill("first key");
  await dialog.getByRole("button", { name: "Create" }).click();
  const key = await dialog.locator("pre").first().textContent();
  await page.goto(`${GATEWAY}/console/overview?ws=${slug}`);
  await expectCount(page.locator("main .badge.good"), 2);

  // Sends the request of the curl command that the page shows.
  const line = await page.locator("main pre, main code").filter({ hasText: "curl" }).first().textContent();
  const headers = Object.fromEntries([...line.matchAll(/-H '([^:]+): ([^']+)'/g)].map(([, name, value]) => [name, value.replace("YOUR-KEY", key)]));
  const url = line.match(/curl (\S+)/)[1];
  const body = line.match(/-d '(.*)'/)[1];
  const sent = () => fetch(url, { method: "POST", headers, body });
  await until("the key works", async () => (await sent()).status !== 401);
  const tile = page.locator("main a.panel").first();
  await refreshUntil(page, tile);
  await expectText(tile, /Requests\s*[1-9]/);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Toured", force_delete: true });
});

test("needs no mouse: signs in, makes, filters, opens and closes with the keyboard", async () => {
  for (let count = 0; count < 3; count += 1) assert.equal((await sendChat("mock-keys")).status, 200);
  await until("the logs", async () => (await callApi("GET", "/v1/logs?ai_model=mock-keys&workspace_slug=*")).data.length >= 3);
  const { page, context } = await openTab();
  await page.waitForSelector("input[name=key]");
  const focused = (expression) => page.evaluate((text) => new RegExp(text).test(document.activeElement?.textContent || document.activeElement?.getAttribute("name") || ""), expression);
  const tabTo = async (expression) => {
    for (let presses = 0; presses < 60; presses += 1) {
      if (await focused(expression)) return;
      await page.keyboard.press("Tab");
    }
    assert.fail(`Tab does not reach ${expression}`);
  };
  await tabTo("^key$");
  await page.keyboard.type(ADMIN_KEY);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.evaluate(() => document.activeElement?.blur());
  await goTo(page, "w");
  await page.getByRole("table", { name: "Workspaces" }).waitFor();
  await tabTo("^Create a workspace$");
  await page.keyboard.press("Enter");
  await page.locator("dialog").waitFor();
  await page.keyboard.type("by keyboard");
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: "by keyboard" }).waitFor();
  // The new workspace opens.
  await page.locator("dialog").getByText("by keyboard").first().waitFor();
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });

  await goTo(page, "l");
  await page.getByRole("table", { name: "Logs" }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("mock-keys");
  await page.keyboard.press("Enter");
  await page.waitForURL(/ai_model=mock-keys/);
  // The rows of the previous list stay until the filtered ones arrive.
  await page.waitForFunction(() => {
    const rows = [...document.querySelectorAll("table[aria-label=Logs] tbody tr[data-index]")];
    return rows.length >= 3 && rows.every((row) => row.textContent.includes("mock-keys"));
  });
  await page.evaluate(() => document.activeElement?.blur());
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Attempts" }).waitFor();
  const first = page.url();
  await page.keyboard.press("]");
  await page.waitForURL((url) => url.href !== first);
  await page.keyboard.press("[");
  await page.waitForURL(first);
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  await page.keyboard.press("Control+k");
  await page.keyboard.type("system");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "System" }).waitFor();
  await context.close();
});

test("shows times in the zone of the browser or in UTC", async () => {
  const shown = async (zone) => {
    const { page, context } = await openSignedIn("", undefined, { timezoneId: zone });
    const created = (await callApi("GET", `/v1/logs/${LOG}?workspace_slug=*`)).created_at;
    const read = async (name) => {
      await page.evaluate((text) => localStorage.setItem("penstock.zone", text), name);
      await openPage(page, `logs/${LOG}`);
      return page.locator("dl.facts dd").first().textContent();
    };
    const found = { created, local: await read("local"), utc: await read("utc") };
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "UTC", exact: true }).click();
    await page.getByRole("button", { name: "Local", exact: true }).waitFor();
    await context.close();
    return found;
  };
  const { created, local, utc } = await shown("Asia/Kolkata");
  const iso = (time) => new Date(time).toISOString().slice(0, 19).replace("T", " ");
  assert.equal(utc, iso(created));
  assert.equal(local, iso(Date.parse(created) + 5.5 * 3_600_000));
});

test("sends only the fields that changed", async () => {
  const made = await callApi("POST", "/v1/api-keys/workspace/service", { name: "of the wire", description: "kept", workspace_id: WORKSPACE, scopes: ["completions.write"], usage_limits: { type: "cost", credit_limit: 5 } });
  const { page, context, faults } = await openSignedIn(`keys/${made.id}`);
  const sent = await recordBodies(page);
  const dialog = page.locator("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("of the wire 2");
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("Saved", { exact: true }).waitFor();
  const changes = sent.filter((one) => one.method === "PUT");
  assert.deepEqual(changes.map((one) => JSON.parse(one.body)), [{ name: "of the wire 2" }]);
  assert.ok(changes[0].ifMatch);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/api-keys/${made.id}`);
});

test("follows a running load with few rows in the document", async () => {
  const { page, context, faults } = await openSignedIn("logs");
  await page.getByRole("button", { name: "Live tail" }).click();
  await page.getByRole("button", { name: "● Live" }).waitFor();
  const LOAD = 600;
  const PARALLEL = 10;
  for (let from = 0; from < LOAD; from += PARALLEL) {
    const answers = await Promise.all(Array.from({ length: PARALLEL }, () => sendChat("mock-load")));
    for (const answer of answers) assert.equal(answer.status, 200);
  }
  // The gateway sends at most some logs a second to a live tail, and reports that it omitted others.
  const last = page.getByRole("row", { name: /mock-last/ });
  await until("the last row", async () => {
    assert.equal((await sendChat("mock-last")).status, 200);
    await last.first().waitFor({ timeout: 2000 });
    return true;
  });
  assert.ok((await page.getByRole("row", { name: /mock-load/ }).count()) > 10);
  assert.ok((await page.locator("table[aria-label=Logs] tbody tr").count()) <= MAX_DOM_ROWS);
  assert.deepEqual(faults, []);
  await context.close();
});

test("lists what uses a guardrail, and tries edits with its stored credentials", async () => {
  const { slug } = await callApi("GET", `/v1/guardrails/${GUARDRAIL}`);
  const config = { provider: "mock", input_guardrails: [slug] };
  const user = await callApi("POST", "/v1/configs", { name: "user of the guardrail", config, workspace_id: WORKSPACE });
  const { page, context, faults } = await openSignedIn(`guardrails/${GUARDRAIL}`);
  const used = page.getByRole("region", { name: "Where it is used" });
  await used.getByRole("link", { name: "user of the guardrail" }).waitFor();
  await expectText(used, /config\.input_guardrails/);
  await page.getByRole("region", { name: /^Check 1/ }).getByLabel("Max words").fill("1");
  await page.getByLabel(/^Text/).fill("two words");
  const sent = await recordBodies(page);
  await page.getByRole("button", { name: "Test", exact: true }).click();
  const result = page.getByRole("status", { name: "Result" });
  await expectText(result, /failed|denied|did not pass/i);
  const [trial] = sent.filter((one) => one.url.endsWith(`/v1/guardrails/${GUARDRAIL}/test`));
  assert.match(JSON.parse(trial.body).checks[1].parameters.headers.authorization, /\*{5}/);
  await used.getByRole("link", { name: "user of the guardrail" }).click();
  await page.getByRole("button", { name: "Leave" }).click();
  await page.getByRole("heading", { name: "user of the guardrail" }).waitFor();
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/configs/${user.slug}`);
});

test("shows budgets near their limit, and costs without a price as unknown", async () => {
  const key = await callApi("POST", "/v1/api-keys/workspace/service", { name: "nearly used up", workspace_id: WORKSPACE, scopes: ["completions.write"], usage_limits: { type: "requests", credit_limit: 5 } });
  await until("the key works", async () => (await sendChat("mock-unpriced", key.key)).status !== 401);
  for (let count = 0; count < 3; count += 1) await sendChat("mock-unpriced", key.key);
  const { page, context, faults } = await openSignedIn("overview");
  const near = page.getByRole("region", { name: "Budgets near their limit" });
  await until("the usage", async () => {
    await page.reload();
    await settle(page);
    return near.getByText("4 of 5 requests").count();
  });
  await expectText(near, /nearly used up.*80 %/s);
  await page.goto(`${GATEWAY}/console/analytics?group=model&ai_model=mock-unpriced`);
  const row = page.getByRole("row", { name: /mock-unpriced/ });
  await refreshUntil(page, row);
  await expectText(row, /no price/);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/api-keys/${key.id}`);
});
