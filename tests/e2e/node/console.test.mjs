// The console in Debian's Chromium, against a gateway with a store, logs and two users.
import assert from "node:assert/strict";
import { createServer, request as sendRequest } from "node:http";
import { test } from "node:test";

import { callApi, clickLink, expectCount, expectText, goTo, openAsUser, openSignedIn, openTab, refreshUntil, sendChat, settle, signIn, until } from "./console-kit.mjs";

const { GATEWAY, ADMIN_KEY, BASE_PATH, MEMBER_EMAIL, MEMBER_PASSWORD, CONFIG, GUARDRAIL, LOG, PICTURES, SIGN_IN_LINK, WORKSPACE } = process.env;
const ADMIN_PAGES = ["Users", "Workspaces", "Organisation", "Secret references", "Audit log"];

test("signs in with the admin key, and says why a wrong one is rejected", async () => {
  const { page, context } = await openTab();
  await page.fill("input[name=key]", "wrong-key-0123456789");
  await page.click("form button.primary");
  await expectText(page.getByRole("alert"), /not known/);
  await signIn(page);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.click("text=Sign out");
  await page.waitForSelector("input[name=key]");
  await context.close();
});

test("signs in with a link once, and removes its secret from the address", async () => {
  // In a tab that shows the console, the link changes only the hash.
  const first = await openTab(SIGN_IN_LINK.split("#")[0]);
  await first.page.waitForSelector("input[name=key]");
  await first.page.goto(SIGN_IN_LINK);
  await first.page.getByRole("heading", { name: "Overview" }).waitFor();
  assert.equal(new URL(first.page.url()).hash, "");
  await first.context.close();
  const second = await openTab(SIGN_IN_LINK);
  await expectText(second.page.getByRole("alert"), /was used or has expired/);
  assert.equal(new URL(second.page.url()).hash, "");
  await second.context.close();
});

test("shows a new key once; its requests appear in the logs", async () => {
  const { page, context, faults } = await openSignedIn("keys?new=1");
  await page.getByLabel("Name", { exact: true }).fill("key of the browser");
  await page.click("dialog button.primary");
  const shown = page.locator("dialog pre").first();
  await shown.waitFor();
  const key = await shown.textContent();
  await page.click("dialog button.primary");
  await page.getByRole("link", { name: "key of the browser" }).waitFor();
  assert.ok(!(await page.content()).includes(key));
  await until("the key works", async () => (await sendChat("mock", key)).status === 200);
  await page.goto(`${GATEWAY}/console/logs`);
  const row = page.getByRole("row", { name: /key of the browser/ });
  await refreshUntil(page, row);
  await row.first().focus();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Attempts" }).waitFor();
  await page.keyboard.press("Escape");
  await page.waitForURL(/\/logs(\?|$)/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("does not overwrite what another tab saved, and sends only what changed", async () => {
  const { page, context } = await openSignedIn(`configs/${CONFIG}`);
  const name = page.getByLabel("Name");
  await name.fill("renamed here");
  await page.getByLabel("Config", { exact: true }).fill('{"provider": "mock", "request_timeout": 30000, "retry": {"attempts": 2}}');
  await callApi("PUT", `/v1/configs/${CONFIG}`, { config: { provider: "mock", retry: { attempts: 4, on_status_codes: [429] } } });
  await page.getByRole("button", { name: "Save", exact: true }).click();
  const conflict = page.getByRole("dialog", { name: "Somebody else changed this meanwhile" });
  await conflict.getByText("config.retry", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Save my changed fields" }).click();
  await page.getByText("Saved", { exact: true }).waitFor();
  const saved = await callApi("GET", `/v1/configs/${CONFIG}`);
  assert.equal(saved.name, "renamed here");
  assert.deepEqual(JSON.parse(saved.config), { provider: "mock", request_timeout: 30_000, retry: { attempts: 2 } });
  await context.close();
});

test("shows the problem of an invalid config, and guards unsaved changes", async () => {
  const { page, context } = await openSignedIn(`configs/${CONFIG}`);
  await page.getByLabel("Config", { exact: true }).fill('{"provider": "mock", "retry": {"atempts": 1}}');
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expectText(page.getByRole("alert").first(), /atempts/);
  await page.getByRole("link", { name: "Logs" }).click();
  await page.getByText("Leave without saving?").waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  assert.match(page.url(), /configs/);
  await page.getByRole("link", { name: "Logs" }).click();
  await page.getByRole("button", { name: "Leave" }).click();
  await page.getByRole("heading", { name: "Logs" }).waitFor();
  await context.close();
});

test("asks for a new sign-in when the session has ended, and repeats the request", async () => {
  const { page, context } = await openSignedIn("workspaces?new=1");
  await page.getByLabel("Name").fill("made after a break");
  // Otherwise a request of the list could open the sign-in over the button.
  await settle(page);
  await context.clearCookies();
  await page.click("dialog button.primary");
  await page.getByRole("heading", { name: "Sign in again" }).waitFor();
  await page.fill("input[name=key]", ADMIN_KEY);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("link", { name: "made after a break" }).waitFor();
  await context.close();
});

test("loads a log after its session has ended, and only the one that is open by then", async () => {
  const { page, context } = await openSignedIn("logs");
  const rows = page.locator("table[aria-label=Logs] tbody tr");
  await rows.first().waitFor();
  await context.clearCookies();
  await rows.first().click();
  await page.getByRole("heading", { name: "Sign in again" }).waitFor();
  // The page behind the sign-in steps to another log, as the browser's back and forward do.
  await clickLink(page, `logs/${LOG}`);
  await page.fill("input[name=key]", ADMIN_KEY);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator("dialog dd.mono").getByText(LOG, { exact: true }).waitFor();
  await page.getByRole("tab", { name: "Request" }).click();
  await page.getByText("Body from the client").waitFor();
  await context.close();
});

test("shows a member no pages of admins", async () => {
  const { page, context } = await openTab();
  await page.getByRole("button", { name: "Password" }).click();
  await page.fill("input[name=email]", MEMBER_EMAIL);
  await page.fill("input[name=password]", MEMBER_PASSWORD);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector("nav");
  await page.locator("nav .pages a").getByText("Logs", { exact: true }).waitFor();
  const names = await page.locator("nav .pages a").allTextContents();
  for (const name of ADMIN_PAGES) assert.ok(!names.includes(name), name);
  await page.goto(`${GATEWAY}/console/users`);
  await page.getByText("You have no access to this page").waitFor();
  await context.close();
});

test("shows a manager the workspace, with what managers may change", async () => {
  const email = "outside@example.com";
  const outside = await openAsUser(email, []);
  await outside.context.close();
  const { page, context, faults } = await openAsUser("manager@example.com", [{ id: WORKSPACE, role: "manager" }], "workspaces");
  const names = await page.locator("nav .pages a").allTextContents();
  assert.deepEqual(ADMIN_PAGES.filter((name) => names.includes(name)), ["Workspaces"]);
  await page.getByRole("table", { name: "Workspaces" }).locator("tbody a").click();
  const sheet = page.getByRole("dialog");
  await sheet.getByLabel("Name", { exact: true }).waitFor();
  assert.ok(await sheet.getByLabel("Description").isEnabled());
  await expectCount(page.getByRole("button", { name: /Create a workspace|^Delete/ }), 0);
  await sheet.getByRole("tab", { name: "Roles and rules" }).click();
  assert.ok(await sheet.getByLabel(/^At most, for each user/).isEnabled());
  assert.ok(await sheet.getByRole("checkbox", { name: "Members change: Configs" }).isDisabled());
  await sheet.getByRole("tab", { name: "Members" }).click();
  const role = sheet.getByLabel(`Role of ${MEMBER_EMAIL}`);
  // The message that one is saved may be gone before the next one appears, so the roles themselves are compared.
  for (const wanted of ["manager", "member"]) {
    await until("the role is enabled", () => role.isEnabled());
    await role.selectOption(wanted);
    const { data } = await callApi("GET", `/v1/workspaces/${WORKSPACE}/users?page_size=1000`);
    const { id } = data.find((one) => one.email === MEMBER_EMAIL);
    await until("the role", async () => (await callApi("GET", `/v1/workspaces/${WORKSPACE}/users/${id}`)).role === wanted);
  }
  assert.ok(await role.locator("option", { hasText: "admin" }).isDisabled());
  await sheet.getByLabel("User to add").fill(email);
  await sheet.getByRole("button", { name: "Add", exact: true }).click();
  await sheet.getByLabel(`Role of ${email}`).waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test("works below a path of a proxy", async () => {
  const prefix = "/tools/gateway";
  const proxy = createServer((incoming, outgoing) => {
    if (!incoming.url.startsWith(`${prefix}/`)) return outgoing.writeHead(404).end();
    const target = new URL(incoming.url.slice(prefix.length), GATEWAY);
    const forwarded = sendRequest(target, { method: incoming.method, headers: incoming.headers }, (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
    });
    return incoming.pipe(forwarded);
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${proxy.address().port}${prefix}/console`;
  try {
    const { page, context, faults } = await openSignedIn("", address);
    assert.equal(page.url(), `${address}/`);
    await page.getByRole("link", { name: "Configs" }).click();
    await page.getByRole("heading", { name: "Configs" }).waitFor();
    await page.goto(`${address}/configs/${CONFIG}?tab=versions`);
    await page.getByText("From the chosen version").waitFor();
    assert.deepEqual(faults, []);
    await context.close();
  } finally {
    proxy.closeAllConnections();
    proxy.close();
  }
});

test("works below a path that a proxy keeps, and sends no request beside it", async () => {
  const { page, context, faults } = await openSignedIn("playground", `${GATEWAY}${BASE_PATH}/console/`);
  const beside = [];
  page.on("request", (request) => new URL(request.url()).pathname.startsWith(`${BASE_PATH}/`) || beside.push(request.url()));
  await page.getByRole("button", { name: "Make one for an hour" }).click();
  const lane = page.getByRole("region", { name: "first model" });
  await lane.getByLabel(/^Provider/).selectOption("mock-main");
  await lane.getByLabel(/^Model/).fill("mock");
  await page.getByLabel("Text of message 1").fill("Say hello");
  await page.getByRole("button", { name: /^Send/ }).click();
  await expectText(lane.locator("pre"), /Hello from/);
  await page.getByRole("link", { name: "Configs" }).click();
  await page.getByRole("heading", { name: "Configs" }).waitFor();
  await page.reload();
  await page.getByRole("heading", { name: "Configs" }).waitFor();
  assert.equal(new URL(page.url()).pathname, `${BASE_PATH}/console/configs`);
  assert.deepEqual(beside, []);
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("401 ")), []);
  await context.close();
});

test("is usable with the keyboard", async () => {
  const { page, context } = await openSignedIn();
  await goTo(page, "c");
  await page.getByRole("table", { name: "Configs" }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("renamed");
  await page.waitForURL(/find=renamed/);
  await page.keyboard.press("Control+k");
  await page.keyboard.type("audit");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Audit log" }).waitFor();
  await context.close();
});

test("streams responses of two models, and runs a prompt and an explanation", async () => {
  const { page, context, faults } = await openSignedIn("playground?pair=1");
  await page.getByRole("button", { name: "Make one for an hour" }).click();
  await page.getByLabel("Saved prompt").selectOption("Greeting");
  await page.getByLabel("Variable name").fill("Ann");
  await page.getByText("Tools", { exact: true }).click();
  await page.getByRole("button", { name: "Insert an example" }).click();
  const [sent] = await Promise.all([page.waitForRequest(/chat\/completions/), page.getByRole("button", { name: /^Send/ }).click()]);
  assert.equal(sent.postDataJSON().messages.at(-1).content, "Greet Ann");
  assert.equal(sent.postDataJSON().tools[0].function.name, "get_weather");
  for (const name of ["first model", "second model"]) {
    const lane = page.getByRole("region", { name });
    await lane.getByText("12 → 8 tokens").waitFor();
    await expectText(lane.locator("pre"), /Hello from/);
  }
  await page.getByRole("link", { name: "Prompts" }).click();
  // Other tests make prompts and configs meanwhile, so these are named.
  await page.getByRole("table", { name: "Prompts" }).getByRole("link", { name: "Greeting", exact: true }).click();
  await page.getByRole("tab", { name: "Run" }).click();
  await page.getByLabel("name", { exact: true }).fill("Ann");
  await page.getByRole("button", { name: /^Run version/ }).click();
  await page.getByText("Hello from").waitFor();
  await page.getByRole("tab", { name: "Compare" }).click();
  await page.getByLabel("name", { exact: true }).fill("Ann");
  await page.getByRole("button", { name: "Add variables" }).click();
  await page.getByLabel("name", { exact: true }).nth(1).fill("Bo");
  await page.getByRole("button", { name: "Run both versions" }).click();
  for (const column of [1, 2]) {
    const side = page.getByRole("region", { name: `column ${column}` });
    await side.getByText("Variables 2").waitFor();
    await expectCount(side.locator("pre"), 2);
    await expectText(side.locator("pre").last(), /Hello from/);
    await expectText(side, /All runs: .* → \d+ tokens/);
  }
  await page.getByRole("link", { name: "Configs" }).click();
  await page.getByRole("table", { name: "Configs" }).locator(`a[href*="${CONFIG}"]`).click();
  await page.getByRole("tab", { name: "Explain" }).click();
  await page.getByRole("button", { name: "Explain" }).click();
  await page.getByText("Explanation", { exact: true }).waitFor();
  await expectText(page.locator("main pre").last(), /"provider": "@?mock/);
  // The workers may reject a new key with 401 for a moment.
  assert.deepEqual(faults.filter((fault) => !fault.startsWith("401 ")), []);
  await context.close();
});

test("adds a provider, a policy and an invitation, and follows new logs", async () => {
  const { page, context, faults } = await openSignedIn("providers?new=1");
  const dialog = page.locator("dialog");
  await dialog.getByLabel("Company or server").selectOption("mock");
  await dialog.getByLabel("API key of the provider").fill("sk-of-the-provider-9876543210");
  await dialog.getByLabel("Slug").fill("from-the-browser");
  await dialog.getByRole("button", { name: "Add" }).click();
  await page.getByRole("link", { name: "@from-the-browser" }).waitFor();
  assert.ok(!(await page.content()).includes("9876543210"));

  await page.goto(`${GATEWAY}/console/limits?new=1`);
  await dialog.getByRole("button", { name: "Rate limit" }).click();
  await dialog.getByLabel("Name").fill("from the browser");
  await dialog.getByLabel("At most").fill("60000");
  await dialog.getByRole("button", { name: "Simulate" }).click();
  await dialog.getByText(/It would have refused 0 of [\d,]+ matching/).waitFor();
  await dialog.getByRole("button", { name: "Create" }).click();
  await page.getByRole("row", { name: /from the browser.*60.*requests per minute/ }).waitFor();

  await page.goto(`${GATEWAY}/console/users?new=1`);
  await dialog.getByLabel("E-mail address").fill("new@example.com");
  await dialog.getByRole("button", { name: "Create the link" }).click();
  await expectText(dialog.locator("pre"), /\/v1\/auth\/invites\?token=/);

  await page.goto(`${GATEWAY}/console/logs`);
  await page.getByRole("button", { name: "Live tail" }).click();
  await page.getByRole("button", { name: "● Live" }).waitFor();
  const row = page.getByRole("row", { name: /mock-live/ });
  await until("the row", async () => {
    assert.equal((await sendChat("mock-live")).status, 200);
    await row.first().waitFor({ timeout: 2000 });
    return true;
  });
  assert.deepEqual(faults, []);
  await context.close();
});

test("makes a guardrail, tries it before it is saved, and says what uses it", async () => {
  const { page, context, faults } = await openSignedIn();
  await goTo(page, "r");
  await page.getByRole("link", { name: "Create a guardrail" }).click();
  await page.getByLabel("Name", { exact: true }).fill("No internals");
  for (const [words, name] of [["gateway.pii", "Personal data gateway.pii"], ["some words", "Contains default.contains"]]) {
    await page.getByRole("button", { name: "Add a check" }).click();
    await page.getByLabel("Search checks").fill(words);
    await page.getByRole("list", { name: "Checks" }).getByRole("button", { name }).click();
  }
  const first = page.getByRole("region", { name: /^Check 1/ });
  const second = page.getByRole("region", { name: /^Check 2/ });
  await first.getByLabel("EMAIL_ADDRESS", { exact: true }).check();
  await first.getByText("Redact").click();
  await second.getByLabel("Operator").selectOption("none");
  await page.getByLabel(/^Deny/).check();

  const result = page.getByRole("status", { name: "Result" });
  const tryText = async (text) => {
    await page.getByLabel(/^Text/).fill(text);
    await page.getByRole("button", { name: "Test", exact: true }).click();
  };
  await tryText("an internal memo");
  await page.getByRole("alert").filter({ hasText: 'checks[1].parameters.words' }).waitFor();
  await second.getByText('"words" is a required property').waitFor();
  await second.getByLabel("Words (required)").fill("internal\nconfidential");
  await tryText("an internal memo");
  await result.getByText("denied").waitFor();
  await tryText("write to ann@example.com");
  await result.getByText("write to {{EMAIL_ADDRESS_1}}", { exact: true }).waitFor();
  await result.getByText("text changed").waitFor();
  await expectCount(result.getByText("denied"), 0);
  if (PICTURES) await page.screenshot({ path: `${PICTURES}/guardrail-tried.png` });

  await second.getByRole("button", { name: "Move up" }).click();
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("tab", { name: "Versions" }).waitFor();
  const id = new URL(page.url()).pathname.split("/").at(-1);
  const saved = await callApi("GET", `/v1/guardrails/${id}`);
  assert.deepEqual(saved.checks.map((check) => [check.id, check.parameters]), [
    ["default.contains", { operator: "none", words: ["internal", "confidential"] }],
    ["gateway.pii", { categories: ["EMAIL_ADDRESS"], redact: true }],
  ]);
  assert.deepEqual([saved.actions.deny, saved.actions.async], [true, false]);
  assert.equal(faults.splice(0).filter((fault) => !fault.startsWith("400 ")).length, 0);

  const config = { provider: "mock", input_guardrails: [saved.slug] };
  const user = await callApi("POST", "/v1/configs", { name: "guarded", config, workspace_id: saved.workspace_id });
  await page.getByRole("button", { name: "Delete" }).click();
  await page.locator("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText(`is used by the config '${user.slug}'`).waitFor();
  await callApi("DELETE", `/v1/configs/${user.slug}`);
  await page.getByRole("button", { name: "Delete" }).click();
  await page.locator("dialog").getByRole("button", { name: "Delete" }).click();
  await page.waitForURL(/\/guardrails$/);
  await expectCount(page.getByRole("link", { name: "No internals" }), 0);
  assert.match(faults.join(), /^409 [^,]*$/);
  await context.close();
});

test("keeps the stored credentials of a check until they are replaced", async () => {
  const { page, context, faults } = await openSignedIn(`guardrails/${GUARDRAIL}`);
  const before = await callApi("GET", `/v1/guardrails/${GUARDRAIL}`);
  const hook = page.getByRole("region", { name: /Webhook$/ });
  await hook.getByText(/authorization: .*\*{5}/).waitFor();
  await hook.getByRole("checkbox", { name: "Enabled" }).check();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("Saved", { exact: true }).waitFor();
  const stored = await callApi("GET", `/v1/guardrails/${GUARDRAIL}`);
  assert.deepEqual(stored.checks[1], { ...before.checks[1], is_enabled: true });

  await hook.getByRole("button", { name: "Replace" }).click();
  await hook.getByLabel("Headers: value 1").fill("another-token-4321");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await hook.getByText(/authorization: an\*{5}321/).waitFor();
  assert.ok(!(await page.content()).includes("another-token-4321"));
  await page.getByRole("tab", { name: "Versions" }).click();
  await page.getByText("From the chosen version").waitFor();
  await expectCount(page.getByRole("button", { name: /^20\d\d-/ }), 3);
  assert.deepEqual(faults, []);
  await context.close();
});
