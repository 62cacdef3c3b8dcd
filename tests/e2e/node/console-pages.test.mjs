// Every page of the console: opens without errors, is accessible in both themes, and fits a narrow window.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { describe, test } from "node:test";

import { callApi, followLink, openPage, openSignedIn, openTab, settle, until } from "./console-kit.mjs";

const { CONFIG, FAILED_LOG, GUARDRAIL, INTEGRATION, KEY_ID, LOG, PARTIAL, PICTURES, POLICY, PROMPT, PROVIDER, SECRET, WORKSPACE } = process.env;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WIDE = { width: 1280, height: 860 };
const NARROW = { width: 390, height: 844 };
/** Size of a window in CSS pixels at a zoom of 200 %. */
const ZOOMED = { width: 640, height: 430 };
const PAGES = [
  "overview", "logs", `logs/${LOG}`, `logs/${LOG}?tab=request`, "traces", "analytics", "playground?pair=1", "prompts", `prompts/${PROMPT}`,
  "prompts/partials", `prompts/partials/${PARTIAL}`, `prompts/partials/${PARTIAL}?tab=versions`, "prompts/partials?new=1", `logs/${FAILED_LOG}`, "analytics?rollup=1h&range=7d",
  "secrets", `secrets/${SECRET}`, "secrets?new=1", "organisation", `providers/integrations/${INTEGRATION}`, `providers/integrations/${INTEGRATION}?tab=models&model=mock`, `providers/integrations/${INTEGRATION}?tab=workspaces`,
  "configs", `configs/${CONFIG}`, "configs?new=1", "guardrails", "guardrails/new", "guardrails/new?add=1", "guardrails/partners?new=1", `guardrails/${GUARDRAIL}`,
  `guardrails/${GUARDRAIL}?tab=versions`, "providers", "providers?new=1", "providers/integrations", "models", "keys", "keys?new=1",
  "limits", "limits?tab=usage", "limits?tab=refusals", "limits?new=1", `limits/${POLICY}`, `keys/${KEY_ID}`, `providers/${PROVIDER}`, `configs/${CONFIG}?tab=versions`, `configs/${CONFIG}?tab=explain`, "traces/order-17", "users", "users/invites", "users?new=1", "workspaces", `workspaces/${WORKSPACE}`, `workspaces/${WORKSPACE}?tab=defaults`, "batches", "logs?exports=1", "audit", "system",
  `workspaces/${WORKSPACE}?tab=members`, `workspaces/${WORKSPACE}?tab=rules`, "workspaces?new=1", "prompts?new=1", `prompts/${PROMPT}?tab=run`, `prompts/${PROMPT}?tab=compare`, `prompts/${PROMPT}?tab=versions`, `prompts/${PROMPT}?share=1`,
  `logs/${LOG}?tab=response`, `logs/${LOG}?tab=raw`, "organisation?exclusions=1", "analytics?metric=status-codes&group=guardrail", "logs?q=hello", "models?rerate=1",
];
const pageOf = (path) => path.match(/^\w+/)[0];
/** The first address of each page. */
const FIRST = PAGES.filter((path, index) => PAGES.findIndex((one) => pageOf(one) === pageOf(path)) === index);
const PARTS = 2;
/** Rules whose findings depend on the theme. */
const COLOUR_RULES = ["color-contrast", "link-in-text-block"];
/** Later rows of long lists, which are made like the first ones. */
const LATER_ROWS = ["tbody tr:nth-of-type(n + 16)", "ul > li:nth-of-type(n + 25)"];
/** Time in which a page must have followed the width of its window. A busy machine may need seconds. */
const FIT_MS = 20_000;

/** Returns the serious findings of axe on a page. */
async function findBarriers(page, options = {}) {
  const given = { resultTypes: ["violations"], preload: false, ...options };
  const { violations } = await page.evaluate(([later, all]) => window.axe.run({ include: [document], exclude: later.map((one) => [one]) }, all), [LATER_ROWS, given]);
  return violations
    .filter((found) => ["serious", "critical"].includes(found.impact))
    .map((found) => `${found.id} ${found.nodes.slice(0, 3).map((node) => node.html.slice(0, 150)).join(" | ")}`);
}

/** Loads axe into the page by the debugger, because the Content-Security-Policy allows no script of the test. */
async function addAxe(page) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(AXE);
}

/** Returns by how many pixels a page, or its dialog, is wider than its window. Tables and code scroll on their own. */
function excessWidth(page) {
  return page.evaluate(() => {
    const parts = [document.documentElement, ...document.querySelectorAll("main, dialog[open], dialog[open] .body")];
    const leftOf = (element) => element.getBoundingClientRect().left;
    // Buttons at the right side of a dialog leave it on the left, where nothing scrolls.
    const lost = [...document.querySelectorAll("dialog[open] footer button")].map((button) => leftOf(button.closest("dialog")) - leftOf(button));
    return Math.ceil(Math.max(...parts.map((part) => part.scrollWidth - part.clientWidth), ...lost));
  });
}

/** Checks an address. The first one of each page loads the document; the others are followed as links, which is faster. */
async function checkPage(page, path) {
  await page.setViewportSize(WIDE);
  await (FIRST.includes(path) ? openPage : followLink)(page, path);
  return checkShown(page, path);
}

/** Returns problems of what a page shows: barriers in both themes, and widths that windows do not have. */
async function checkShown(page, path) {
  const problems = [];
  const takePicture = async (name) => {
    if (PICTURES) await page.screenshot({ path: `${PICTURES}/${path.replace(/\W+/g, "-")}-${name}.png` });
  };
  await page.setViewportSize(WIDE);
  const main = await page.textContent("main");
  if (/could not be loaded|no such page|no access/.test(main)) problems.push(main);
  await addAxe(page);
  problems.push(...(await findBarriers(page)));
  await takePicture("light");
  await page.emulateMedia({ colorScheme: "dark" });
  problems.push(...(await findBarriers(page, { runOnly: COLOUR_RULES })).map((problem) => `dark: ${problem}`));
  await takePicture("dark");
  await page.emulateMedia({ colorScheme: "light" });
  for (const [name, size] of Object.entries({ zoomed: ZOOMED, narrow: NARROW })) {
    await page.setViewportSize(size);
    // Charts and editors follow the width of the window a moment later.
    await until("the page fits", async () => (await excessWidth(page)) <= 0, FIT_MS).catch(async () => problems.push(`${await excessWidth(page)} pixels too wide for ${size.width}`));
    await takePicture(name);
  }
  if (PICTURES) {
    await page.emulateMedia({ colorScheme: "dark" });
    await takePicture("narrow-dark");
    await page.emulateMedia({ colorScheme: "light" });
  }
  return problems.map((problem) => `${path}: ${problem}`);
}

/** What opens over a page, or on it, only after a click. */
const OVERLAYS = {
  async palette(page) {
    await openPage(page, "overview");
    await page.keyboard.press("Control+k");
    await page.locator("dialog").getByRole("option").first().waitFor();
  },
  async rotate(page) {
    await openPage(page, `keys/${KEY_ID}`);
    await page.getByRole("button", { name: "Rotate" }).click();
    await page.getByLabel("The old key works for").waitFor();
  },
  async "secret-once"(page) {
    await openPage(page, "keys?new=1");
    await page.getByLabel("Name", { exact: true }).fill("of a picture");
    await page.click("dialog button.primary");
    await page.locator("dialog pre").first().waitFor();
  },
  async conflict(page) {
    const config = await callApi("POST", "/v1/configs", { name: "of a conflict", config: { provider: "mock", retry: { attempts: 1 } }, workspace_id: WORKSPACE });
    await openPage(page, `configs/${config.id}`);
    await page.getByLabel("Name").fill("renamed here");
    await callApi("PUT", `/v1/configs/${config.id}`, { name: "renamed there" });
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await page.getByText("Both of you changed").waitFor();
  },
  async "audit-entry"(page) {
    const targets = Array.from({ length: 80 }, (_, index) => ({ provider: "mock", override_params: { model: `model-of-an-audit-entry-${index}` } }));
    await callApi("POST", "/v1/configs", { name: "of an audit entry", config: { strategy: { mode: "fallback" }, targets }, workspace_id: WORKSPACE });
    await openPage(page, "audit?resource_type=configs&action=create");
    await page.getByRole("row", { name: /of an audit entry/ }).first().click();
    const differences = page.getByRole("dialog").getByRole("region", { name: "Differences" });
    await differences.waitFor();
    assert.ok(await differences.evaluate((one) => one.scrollHeight > one.clientHeight), "the differences scroll");
  },
  async "batches-with-key"(page) {
    await openPage(page, "batches?tab=files");
    await page.getByRole("button", { name: "Make one for an hour" }).click();
    await page.getByRole("button", { name: "Run a batch" }).waitFor();
    await settle(page);
  },
  async collections(page) {
    const { slug } = await callApi("GET", `/v1/workspaces/${WORKSPACE}`);
    await openPage(page, `prompts?ws=${slug}&collections=1`);
    await page.getByRole("list", { name: "Collections" }).waitFor();
  },
};

describe("pages", { concurrency: PARTS + 1 }, () => {
  for (let part = 0; part < PARTS; part += 1) {
    test(`every page opens, without barriers in both themes, and fits a narrow window (${part + 1} of ${PARTS})`, async () => {
      const { page, context, faults } = await openSignedIn("", undefined, { colorScheme: "light", reducedMotion: "reduce" });
      const problems = [];
      for (const path of PAGES.filter((_, index) => index % PARTS === part)) {
        problems.push(...(await checkPage(page, path)));
        problems.push(...faults.splice(0).map((fault) => `${path}: ${fault}`));
      }
      assert.deepEqual(problems, []);
      await context.close();
    });
  }

  test("what opens over a page has no barriers, and fits a narrow window", async () => {
    const { page, context, faults } = await openSignedIn("", undefined, { colorScheme: "light", reducedMotion: "reduce" });
    const problems = [];
    for (const [name, open] of Object.entries(OVERLAYS)) {
      await page.setViewportSize(WIDE);
      await open(page).catch((error) => {
        throw new Error(`${name} does not open: ${error.message}; faults: ${faults.join(", ")}`, { cause: error });
      });
      problems.push(...(await checkShown(page, name)));
    }
    assert.deepEqual(problems, []);
    // The conflict, and requests with a key that the workers do not know yet.
    assert.deepEqual(faults.filter((fault) => !/^(412|401) /.test(fault)), []);
    await context.close();
  });
});

test("the sign-in and the menu have no barriers, and Esc closes the menu", async () => {
  const tab = await openTab(undefined, { colorScheme: "light", reducedMotion: "reduce" });
  await tab.page.waitForSelector("input[name=key]");
  const problems = await checkShown(tab.page, "sign-in");
  await tab.context.close();
  const { page, context } = await openSignedIn("system", undefined, { colorScheme: "light" });
  await page.setViewportSize(NARROW);
  const menu = page.getByRole("button", { name: "Menu" });
  await menu.click();
  await addAxe(page);
  problems.push(...(await findBarriers(page)));
  assert.equal(await page.locator("main").evaluate((main) => main.inert), true);
  await page.keyboard.press("Escape");
  assert.equal(await menu.getAttribute("aria-expanded"), "false");
  assert.deepEqual(problems, []);
  await context.close();
});

test("pages say what to do when a workspace is empty", async () => {
  const { id, slug } = await callApi("POST", "/v1/workspaces", { name: "Empty" });
  const { page, context, faults } = await openSignedIn("", undefined, { reducedMotion: "reduce" });
  for (const path of ["overview", "logs", "traces", "playground", "prompts", "configs", "guardrails", "providers", "keys", "limits", "prompts/partials"]) {
    await followLink(page, `${path}?ws=${slug}`);
    assert.ok(await page.locator("main .empty, main ol").count(), path);
    assert.ok(await page.locator("main .empty p, main ol p").count(), `${path} says what to do`);
  }
  assert.deepEqual(faults, []);
  await context.close();
  await callApi("DELETE", `/v1/workspaces/${id}`, { name: "Empty", force_delete: true });
});
