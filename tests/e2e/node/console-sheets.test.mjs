// Sheets, dialogs and tabs with the keyboard alone: Tab reaches each control and stays inside, every control has a name
// for screen readers, and Esc closes.
import assert from "node:assert/strict";
import { test } from "node:test";

import { followLink, openPage, openSignedIn } from "./console-kit.mjs";

const { CONFIG, GUARDRAIL, INTEGRATION, KEY_ID, LOG, POLICY, PROVIDER, SECRET, WORKSPACE } = process.env;
const SHEETS = [
  `logs/${LOG}`, "keys?new=1", "limits?new=1", "providers?new=1", "configs?new=1", "guardrails/partners?new=1", `workspaces/${WORKSPACE}?tab=members`, `workspaces/${WORKSPACE}?tab=defaults`, `workspaces/${WORKSPACE}?tab=rules`, "prompts?new=1", `secrets/${SECRET}`,
  `providers/integrations/${INTEGRATION}`, `providers/${PROVIDER}`, `keys/${KEY_ID}`, `limits/${POLICY}`,
];
/** Number of Tab presses between two checks of the focus. */
const PRESSES = 4;
/** Controls that Tab must reach. */
const CONTROLS = "a[href], button:not([disabled]), input:not([disabled]), select:not([disabled]), textarea:not([disabled]), summary";

/** Returns the number of controls in the open dialog. Records which of them, and what outside, get the focus. */
function watchFocus(selector) {
  const dialog = [...document.querySelectorAll("dialog[open]")].at(-1);
  const controls = [...dialog.querySelectorAll(selector)].filter((one) => one.checkVisibility() && one.tabIndex >= 0 && !one.closest("fieldset[disabled]"));
  window.focused = new Set();
  window.outside = [];
  window.watch?.abort();
  window.watch = new AbortController();
  const record = ({ target }) => {
    if (controls.includes(target)) window.focused.add(target);
    else if (!dialog.contains(target)) window.outside.push(target.outerHTML.slice(0, 120));
  };
  addEventListener("focusin", record, { signal: window.watch.signal });
  return controls.length;
}

/** Presses Tab until every control had the focus. Returns problems. */
async function walk(page, path) {
  const count = await page.evaluate(watchFocus, CONTROLS);
  const readState = () => page.evaluate(() => ({ reached: window.focused.size, outside: window.outside }));
  let state = await readState();
  for (let rounds = 0; rounds < 2 * count && state.reached < count; rounds += 1) {
    for (let press = 0; press < PRESSES; press += 1) await page.keyboard.press("Tab");
    state = await readState();
  }
  const problems = state.outside.map((html) => `${path}: Tab leaves the dialog to ${html}`);
  return state.reached < count ? [...problems, `${path}: Tab reaches ${state.reached} of ${count} controls`] : problems;
}

test("reaches every control of every sheet by Tab, and closes it by Esc", async () => {
  const { page, context, faults } = await openSignedIn("", undefined, { reducedMotion: "reduce" });
  const problems = [];
  for (const path of SHEETS) {
    await followLink(page, path);
    await page.locator("dialog[open]").waitFor();
    problems.push(...(await walk(page, path)));
    const nameless = await page.locator("dialog[open]").evaluate((dialog) => [...dialog.querySelectorAll("button, input, select, textarea")].filter((one) => !(one.labels?.length || one.getAttribute("aria-label") || one.textContent.trim() || one.title)).map((one) => one.outerHTML.slice(0, 100)));
    problems.push(...nameless.map((html) => `${path}: no name ${html}`));
    await page.evaluate(() => window.watch.abort());
    await page.locator("dialog[open] h2").first().click();
    await page.keyboard.press("Escape");
    await page.locator("dialog[open]").waitFor({ state: "detached" }).catch(() => problems.push(`${path}: Esc does not close`));
  }
  assert.deepEqual(problems, []);
  assert.deepEqual(faults, []);
  await context.close();
});

test("moves between tabs with the arrow keys", async () => {
  const { page, context, faults } = await openSignedIn(`configs/${CONFIG}`);
  await page.getByRole("tab", { name: "Editor" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForURL(/tab=versions/);
  await page.keyboard.press("ArrowRight");
  await page.waitForURL(/tab=explain/);
  await page.keyboard.press("ArrowRight");
  await page.waitForURL((url) => !url.search.includes("tab"));
  assert.equal(await page.getByRole("tab", { name: "Editor" }).getAttribute("aria-selected"), "true");
  await openPage(page, `guardrails/${GUARDRAIL}`);
  await page.getByRole("tab", { name: "Editor" }).press("ArrowLeft");
  await page.waitForURL(/tab=versions/);
  assert.deepEqual(faults, []);
  await context.close();
});

test("returns the focus to what opened a dialog, and asks before Back closes a form", async () => {
  const { page, context, faults } = await openSignedIn("keys");
  const opener = page.getByRole("button", { name: "Create a key" }).first();
  await opener.press("Enter");
  const dialog = page.getByRole("dialog", { name: "Create an API key" });
  await dialog.getByLabel("Name", { exact: true }).fill("not saved");
  await page.evaluate(() => history.back());
  await page.getByRole("dialog", { name: "Leave without saving?" }).getByRole("button", { name: "Cancel" }).click();
  assert.equal(await dialog.getByLabel("Name", { exact: true }).inputValue(), "not saved");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("dialog", { name: "Close without saving?" }).getByRole("button", { name: "Discard" }).click();
  await dialog.waitFor({ state: "detached" });
  assert.ok(await opener.evaluate((button) => button === document.activeElement));
  assert.deepEqual(faults, []);
  await context.close();
});

test("keeps the filter of a list while a row is open, and offers all integrations for a provider", async () => {
  const { page, context, faults } = await openSignedIn("providers?find=mock-main");
  await page.getByRole("link", { name: "@mock-main" }).click();
  await page.waitForURL(new RegExp(`/providers/${PROVIDER}\\?find=mock-main$`));
  await page.locator("dialog").getByLabel("Name", { exact: true }).waitFor();
  await page.keyboard.press("Escape");
  await page.waitForURL(/\/providers\?find=mock-main$/);
  await openPage(page, "providers?find=nothing-has-this-name&new=1");
  await page.getByLabel(/^Integration/).selectOption(INTEGRATION);
  assert.deepEqual(faults, []);
  await context.close();
});
