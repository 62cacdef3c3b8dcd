// Tabs of the console in Debian's Chromium, for its tests.
import assert from "node:assert/strict";
import { after, before } from "node:test";

import { chromium } from "playwright-core";

const { GATEWAY, ADMIN_KEY, CHROMIUM } = process.env;
const WINDOW = { width: 1360, height: 860 };

let browser;
before(async () => {
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
});
after(() => browser.close());

/** Opens a tab that collects everything that went wrong in it. */
export async function openTab(address = `${GATEWAY}/console/`, options = {}) {
  const context = await browser.newContext({ viewport: WINDOW, ...options });
  const faults = [];
  await context.exposeFunction("reportFault", (text) => faults.push(text));
  await context.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => {
      window.reportFault(`policy ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
    });
  });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on("pageerror", (error) => faults.push(`error ${error.message}`));
  page.on("response", (response) => {
    if (response.status() >= 400) faults.push(`${response.status()} ${response.url()}`);
  });
  await page.goto(address);
  return { page, context, faults };
}

export async function signIn(page, key = ADMIN_KEY) {
  await page.fill("input[name=key]", key);
  await page.click("form button.primary");
  await page.waitForSelector("nav");
}

/** Opens a tab that is signed in with the admin key. */
export async function openSignedIn(path = "", address = `${GATEWAY}/console/`, options = {}) {
  const tab = await openTab(address + path, options);
  await signIn(tab.page);
  // Before the sign-in, the gateway says that nobody is signed in.
  tab.faults.length = 0;
  return tab;
}

export async function callApi(method, path, body, headers = {}) {
  const response = await fetch(GATEWAY + path, {
    method,
    headers: { "content-type": "application/json", "x-gateway-api-key": ADMIN_KEY, ...headers },
    body: body && JSON.stringify(body),
  });
  assert.equal(response.status, 200, await response.clone().text());
  return response.json();
}

/** Replaces the responses of some addresses inside the page. Rows of a million real logs take too long to write. */
export function replaceResponses({ total, pageSize, bodyChars, log }) {
  const send = window.fetch.bind(window);
  const json = (value) => new Response(JSON.stringify(value), { headers: { "content-type": "application/json" } });
  window.fetch = async (input, options) => {
    const url = new URL(input.url ?? input, location.href);
    if (total && url.pathname.endsWith("/v1/logs")) {
      const from = Number(url.searchParams.get("cursor") ?? 0);
      const data = Array.from({ length: Math.min(pageSize, total - from) }, (_, index) => ({ id: `row-${from + index}`, created_at: "2026-01-01T00:00:00Z", response_status_code: 200, ai_model: `model ${from + index}` }));
      const next = from + data.length;
      return json({ object: "list", data, has_more: next < total, next_cursor: next < total ? String(next) : null, partial: false });
    }
    if (bodyChars && url.pathname.endsWith(`/v1/logs/${log}`)) {
      const found = await (await send(input, options)).json();
      found.request.body = { model: "mock", messages: [{ role: "user", content: "x".repeat(bodyChars) }] };
      return json(found);
    }
    return send(input, options);
  };
}
