// Lists and texts of the console that are far larger than a window.
import assert from "node:assert/strict";
import { test } from "node:test";

import { callApi, enlargeBody, expectCount, followLink, openPage, openSignedIn, openTab, replaceResponses, sendChat, settle, streamText, until } from "./console-kit.mjs";

const { GATEWAY, KEY, LOG, WORKSPACE } = process.env;
const MAX_DOM_ROWS = 300;
/** More than a page of a list has. */
const LISTED = 208;
const PARALLEL = 16;

test("scrolls a million logs with few rows in the document", async () => {
  const tab = await openTab("about:blank", { isSignedIn: true });
  await tab.context.addInitScript(replaceResponses, { total: 1_000_000, pageSize: 100_000 });
  await tab.page.goto(`${GATEWAY}/console/logs`);
  const { page } = tab;
  const rows = page.locator("table[aria-label=Logs] tbody tr[data-index]");
  await page.getByText("100,000 shown").waitFor();
  const toEnd = () => page.evaluate(() => document.querySelector("main").scrollTo(0, 1e9));
  for (let loaded = 200_000; loaded <= 1_000_000; loaded += 100_000) {
    await toEnd();
    await page.getByText(`${loaded.toLocaleString("en")} shown`).waitFor();
    assert.ok((await rows.count()) <= MAX_DOM_ROWS);
  }
  await toEnd();
  await page.getByRole("row", { name: /model 999999/ }).waitFor();
  await page.evaluate(() => document.querySelector("main").scrollTo(0, document.querySelector("main").scrollHeight / 2));
  await page.getByRole("row", { name: /model (49|50)\d{4}/ }).first().waitFor();
  assert.ok((await rows.count()) <= MAX_DOM_ROWS);
  await tab.context.close();
});

test("opens a body of 20 MB in parts", async () => {
  const tab = await openTab("about:blank", { isSignedIn: true });
  await enlargeBody(tab.page, LOG, 20 * 1024 * 1024);
  await tab.page.goto(`${GATEWAY}/console/logs/${LOG}?tab=request`);
  const { page } = tab;
  await page.getByText(/Body from the client: 64 kB of 20\.?\d* MB shown|Body from the client: 64.* of 2\d.* shown/).waitFor();
  await page.getByRole("button", { name: /^Show .* more$/ }).click();
  await page.getByText(/Body from the client: 1\d\d.* of 2\d.* shown/).waitFor();
  const shown = await page.getByRole("region", { name: "Body from the client" }).textContent();
  assert.equal(shown.length, 2 * 64 * 1024);
  assert.deepEqual(tab.faults, []);
  await tab.context.close();
});

test("shows more of a list than its first page, and filters all of it", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Listed" });
  const create = (index) => callApi("POST", "/v1/configs", { name: `listed ${String(index).padStart(3, "0")}`, config: { provider: "mock" }, workspace_id: id });
  for (let from = 0; from < LISTED; from += PARALLEL) await Promise.all(Array.from({ length: PARALLEL }, (_, index) => create(from + index)));
  const { page, context, faults } = await openSignedIn(`configs?ws=${slug}`);
  const table = page.getByRole("table", { name: "Configs" });
  await table.waitFor();
  await page.getByRole("button", { name: "Show more" }).click();
  await page.getByRole("button", { name: "Show more" }).waitFor({ state: "detached" });
  await page.getByLabel("Filter configs").fill("listed 000");
  await table.getByRole("link", { name: "listed 000" }).waitFor();
  await expectCount(table.locator("tbody a"), 1);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Listed", force_delete: true });
});

test("shows hostile names and texts as text", async () => {
  const evil = `<img src=x onerror="window.broken=1">‮\u0000‏🧨${"長".repeat(60)}`.replace("\u0000", "");
  const config = await callApi("POST", "/v1/configs", { name: evil, config: { provider: "mock" }, workspace_id: WORKSPACE });
  const sent = await fetch(`${GATEWAY}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-gateway-api-key": KEY, "x-gateway-provider": "mock", "x-gateway-trace-id": "<svg onload=alert(1)>", "x-gateway-metadata": JSON.stringify({ team: "<script>window.broken=1</script>", _user: '"><b onmouseover=alert(1)>' }) },
    body: JSON.stringify({ model: "<img src=x onerror=window.broken=1>", messages: [{ role: "<b>", content: '</pre><script>window.broken=1</script>' }] }),
  });
  const id = sent.headers.get("x-gateway-request-id");
  const { page, context, faults } = await openSignedIn(`configs/${config.id}`);
  await page.getByRole("heading", { name: "<img src=x" }).waitFor();
  for (const path of ["configs", "logs", "traces", "analytics?group=metadata.team", "analytics?group=users", "overview", `configs?find=${encodeURIComponent("<img")}`]) {
    await followLink(page, path);
  }
  await until("the log", () => callApi("GET", `/v1/logs/${id}?workspace_slug=*`));
  for (const query of ["", "?tab=request", "?tab=response", "?tab=raw"]) {
    await followLink(page, `logs/${id}${query}`);
    await page.locator("dialog .tabs").waitFor();
  }
  assert.equal(await page.evaluate(() => window.broken), undefined);
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/configs/${config.id}`);
});

test("saves a view of the analytics, and downloads its rows", async () => {
  const { page, context, faults } = await openSignedIn("analytics?metric=cost&group=api_key&range=7d");
  await page.getByRole("button", { name: "Save the view" }).click();
  await page.getByLabel("Name").fill("Costs of keys");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.goto(`${GATEWAY}/console/analytics`);
  await page.getByLabel("Saved views").selectOption("Costs of keys");
  await page.waitForURL(/metric=cost&group=api_key&range=7d/);
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download CSV" }).click()]);
  assert.equal(download.suggestedFilename(), "penstock-api_key.csv");
  await page.getByRole("button", { name: "Delete the view" }).click();
  await expectCount(page.getByLabel("Saved views"), 0);
  assert.deepEqual(faults, []);
  await context.close();
});

test("loads all groups of analytics, and links them to their logs", async () => {
  const TOTAL = 1450;
  const bounds = [];
  const { page, context, faults } = await openSignedIn();
  await page.route(/\/v1\/analytics\/groups\/users\?/, (route) => {
    const query = new URL(route.request().url()).searchParams;
    const [size, number] = [Number(query.get("page_size")), Number(query.get("current_page"))];
    bounds.push(`${size} from ${query.get("time_of_generation_min")} to ${query.get("time_of_generation_max")}`);
    const data = Array.from({ length: Math.max(0, Math.min(size, TOTAL - size * number)) }, (_, index) => ({ user: `user ${size * number + index}`, requests: 1, cost: 12.48 }));
    return route.fulfill({ json: { object: "list", total: TOTAL, data } });
  });
  await openPage(page, "analytics?group=users&ai_model=mock&range=7d");
  await page.getByText("200 of 1,450 loaded").waitFor();
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download CSV" }).click()]);
  const lines = (await streamText(await download.createReadStream())).split("\r\n");
  assert.equal(lines.length, TOTAL + 1);
  const [titles, first] = lines.map((line) => line.split(","));
  assert.equal(first[titles.indexOf("cost_usd")], "0.1248");
  const target = new URL(await page.getByRole("link", { name: "user 0", exact: true }).getAttribute("href"), GATEWAY);
  assert.deepEqual(Object.fromEntries(target.searchParams), { range: "7d", ai_model: "mock", metadata: '{"_user":"user 0"}' });
  await page.getByRole("button", { name: "Show more" }).click();
  await page.getByText("400 of 1,450 loaded").waitFor();
  // Two pages of the table and two of the file: the pages of each have the same times.
  assert.deepEqual([bounds.length, new Set(bounds).size], [4, 2]);
  assert.ok(bounds.every((one) => !one.includes("null")));
  for (const metric of ["status-codes", "rescued", "guardrails", "cache-latency"]) await followLink(page, `analytics?metric=${metric}`);
  assert.deepEqual(faults, []);
  await context.close();
});

test("corrects the costs of logs in parts, after a report", async () => {
  const { page, context, faults } = await openSignedIn("models?rerate=1");
  const bodies = [];
  const rated = { ai_org: "openai", ai_model: "gpt-4o", logs: 40, corrected: 3, unpriced: 0, skipped: 0, old_cost: 0, new_cost: 12 };
  await page.route(/\/v1\/admin\/logs\/rerate$/, (route) => {
    const body = route.request().postDataJSON();
    bodies.push(body);
    return route.fulfill({ json: { object: "rerating", data: [rated], dry_run: body.dry_run === true, time_of_generation_max: body.time_of_generation_max, next_cursor: body.cursor ? null : "second part" } });
  });
  const dialog = page.getByRole("dialog", { name: "Correct the costs of logs" });
  const correct = dialog.getByRole("button", { name: "Correct the logs" });
  assert.ok(await correct.isDisabled());
  await dialog.getByLabel("Model").fill("gpt-4o");
  await dialog.getByRole("button", { name: "Report" }).click();
  await dialog.getByText("80 logs, of which 6 would be corrected.").waitFor();
  await correct.click();
  await page.getByText("6 logs corrected").waitFor();
  assert.deepEqual(bodies.map((one) => [one.dry_run === true, one.cursor ?? "", one.ai_model]), [[true, "", "gpt-4o"], [true, "second part", "gpt-4o"], [false, "", "gpt-4o"], [false, "second part", "gpt-4o"]]);
  assert.equal(new Set(bodies.map((one) => `${one.time_of_generation_min} ${one.time_of_generation_max}`)).size, 1);
  assert.deepEqual(faults, []);
  await context.close();
});

test("corrects only the logs of the report, and stays open until it has", async () => {
  const { page, context, faults } = await openSignedIn("models?rerate=1");
  const rated = { ai_org: "openai", ai_model: "gpt-4o", logs: 40, corrected: 3, unpriced: 0, skipped: 0, old_cost: 0, new_cost: 12 };
  let release;
  const held = new Promise((resolve) => (release = resolve));
  await page.route(/\/v1\/admin\/logs\/rerate$/, async (route) => {
    const body = route.request().postDataJSON();
    if (!body.dry_run && body.cursor) await held;
    return route.fulfill({ json: { object: "rerating", data: [rated], dry_run: body.dry_run === true, time_of_generation_max: body.time_of_generation_max, next_cursor: body.cursor ? null : "second part" } });
  });
  const dialog = page.getByRole("dialog", { name: "Correct the costs of logs" });
  const correct = dialog.getByRole("button", { name: "Correct the logs" });
  const report = async () => {
    await dialog.getByRole("button", { name: "Report" }).click();
    await until("the button", () => correct.isEnabled());
  };
  await report();
  await dialog.getByRole("textbox", { name: /^Model/ }).fill("gpt-4o");
  assert.ok(await correct.isDisabled());
  await report();
  await correct.click();
  await dialog.getByText("Working… 40 logs, of which 3 were corrected.").waitFor();
  await page.keyboard.press("Escape");
  await dialog.getByRole("button", { name: "Close" }).last().click();
  assert.ok(await dialog.isVisible());
  release();
  await page.getByText("6 logs corrected").waitFor();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  assert.deepEqual(faults, []);
  await context.close();
});

test("says that words are searched in the list only", async () => {
  const { page, context, faults } = await openSignedIn("logs?q=hello&live=1");
  await page.getByText("All requests of the other filters").waitFor();
  assert.ok(await page.getByRole("button", { name: "Live tail" }).isDisabled());
  await page.getByLabel("Search words").fill("");
  await page.getByLabel("Search words").press("Enter");
  await page.getByRole("button", { name: "● Live" }).waitFor();
  await expectCount(page.getByText("All requests of the other filters"), 0);
  assert.deepEqual(faults, []);
  await context.close();
});

test("shows the parts of the node", async () => {
  const { page, context, faults } = await openSignedIn("system");
  const parts = page.getByRole("region", { name: "Parts" });
  const workers = page.getByRole("region", { name: "Workers" });
  // The page shows the state at its last load. A part that replied late counts as down, and a worker has an older snapshot
  // while other tests write.
  await until("all parts are up, and a worker is current", async () => {
    await page.reload();
    await settle(page);
    return (await workers.getByText("current").count()) && /Database\s*up.*Redis\s*not configured.*Log worker\s*up.*Log store\s*up.*Spool.*Snapshot/s.test(await parts.textContent());
  });
  assert.deepEqual(faults, []);
  await context.close();
});

test("opens a log without loading the list again", async () => {
  const { page, context, faults } = await openSignedIn("logs?range=7d");
  await page.getByRole("table", { name: "Logs" }).waitFor();
  await settle(page);
  const lists = [];
  page.on("request", (request) => /\/v1\/(logs|analytics\/graphs\/requests)\?/.test(request.url()) && lists.push(request.url()));
  await page.getByRole("table", { name: "Logs" }).locator("tbody a").first().click();
  await page.getByRole("heading", { name: "Attempts" }).waitFor();
  await page.getByRole("tab", { name: "Response" }).click();
  await page.getByRole("tabpanel", { name: "Response" }).getByText("Body to the client").waitFor();
  assert.deepEqual(lists, []);
  await page.keyboard.press("Escape");
  await page.getByLabel("Errors only").check();
  await until("the filtered list", () => lists.some((url) => url.includes("status_code=4xx")));
  assert.deepEqual(faults, []);
  await context.close();
});
