// Tabs of the console in Debian's Chromium, for its tests. All files of a run share one browser.
import assert from "node:assert/strict";
import { after, before } from "node:test";

import { chromium } from "playwright-core";

const { GATEWAY, ADMIN_KEY, BROWSER, KEY } = process.env;
const WINDOW = { width: 1360, height: 860 };
/** Generous, because other tests may use the processors at the same time. */
const WAIT_MS = 60_000;
const POLL_MS = 50;
/** Time without a request of the page after which it has shown everything. */
const QUIET_MS = 120;
/** Password of the users that tests create. */
export const PASSWORD = "correct horse battery staple";

let browser;
let session;
before(async () => {
  browser = await chromium.connect(BROWSER);
  session = await createSession();
});
after(() => browser.close());

/** Sends JSON to a route that needs no key. */
function postOpenly(path, body) {
  return fetch(GATEWAY + path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

/** Signs in through the API and returns the cookie. */
export async function createSession(credentials = { api_key: ADMIN_KEY }) {
  const response = await postOpenly("/v1/auth/sessions", credentials);
  assert.equal(response.status, 200);
  const [name, value] = response.headers.get("set-cookie").split(";")[0].split("=");
  return { name, value, url: GATEWAY, httpOnly: true, sameSite: "Strict" };
}

/**
 * Sets `window.isQuiet` for `settle`: false while the page waits for a response, reads its body, or has just read it. A
 * busy machine may need far longer for the body than for the head.
 */
function watchRequests(quiet) {
  let open = 0;
  let timer;
  window.isQuiet = true;
  const track = async (action) => {
    open += 1;
    window.isQuiet = false;
    clearTimeout(timer);
    try {
      return await action();
    } finally {
      open -= 1;
      clearTimeout(timer);
      if (!open) timer = setTimeout(() => (window.isQuiet = true), quiet);
    }
  };
  const send = window.fetch.bind(window);
  window.fetch = (...request) =>
    track(async () => {
      await window.recordRequest?.(...request);
      return send(...request);
    });
  for (const name of ["arrayBuffer", "blob", "json", "text"]) {
    const read = Response.prototype[name];
    Response.prototype[name] = function () {
      return track(() => read.call(this));
    };
  }
}

/** Opens a tab that collects the errors that occur in it. */
export async function openTab(address = `${GATEWAY}/console/`, options = {}) {
  const { isSignedIn, ...others } = options;
  // Pictures of a movement cost more time than all else that a waiting page does.
  const context = await browser.newContext({ viewport: WINDOW, reducedMotion: "reduce", ...others });
  if (isSignedIn) await context.addCookies([session]);
  const faults = [];
  await context.exposeFunction("reportFault", (text) => faults.push(text));
  await context.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => {
      window.reportFault(`policy ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
    });
  });
  await context.addInitScript(watchRequests, QUIET_MS);
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
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
  const tab = await openTab(address + path, { isSignedIn: true, ...options });
  await tab.page.waitForSelector("nav");
  return tab;
}

/** Creates a user who is a member of the organisation, and opens a tab in which this user is signed in. */
export async function openAsUser(email, workspaces, path = "") {
  const { invite_link: link } = await callApi("POST", "/v1/admin/users/invites", { email, role: "member", first_name: "Uma", last_name: "User", workspaces });
  const accepted = await postOpenly("/v1/auth/invites", { token: new URL(link).searchParams.get("token"), password: PASSWORD });
  assert.equal(accepted.status, 200, await accepted.text());
  const cookie = await createSession({ email, password: PASSWORD });
  const tab = await openTab("about:blank");
  await tab.context.addCookies([cookie]);
  await tab.page.goto(`${GATEWAY}/console/${path}`);
  await tab.page.waitForSelector("nav");
  return tab;
}

/** Waits until the page has shown the responses to all its requests. */
export async function settle(page) {
  await page.waitForSelector("main h1");
  await page.waitForFunction(() => {
    const isLoading = [...document.querySelectorAll("main [role=status], dialog [role=status]")].some((one) => one.textContent.startsWith("Loading"));
    return !isLoading && window.isQuiet;
  }, undefined, { polling: POLL_MS });
}

/** Opens an address of the console, and waits until everything is shown. */
export async function openPage(page, path) {
  await page.goto(`${GATEWAY}/console/${path}`);
  await settle(page);
}

/** Clicks a link to an address of the console, which does not load the document again. */
export function clickLink(page, path) {
  return page.evaluate((address) => {
    const link = Object.assign(document.createElement("a"), { href: address });
    document.body.append(link);
    link.click();
    link.remove();
  }, `${GATEWAY}/console/${path}`);
}

/** Opens an address of the console by a link, and waits until everything is shown. */
export async function followLink(page, path) {
  await clickLink(page, path);
  const { pathname } = new URL(`${GATEWAY}/console/${path}`);
  await page.waitForURL((url) => url.pathname === pathname);
  await settle(page);
}

/** Waits until `read` returns a true value, and returns it. Ignores errors of `read` until then. */
export async function until(what, read, timeout = WAIT_MS) {
  const end = Date.now() + timeout;
  for (;;) {
    const problem = {};
    const found = await Promise.resolve().then(read).catch((error) => void (problem.error = error));
    if (found) return found;
    if (Date.now() > end) throw new Error(`${what} does not happen`, { cause: problem.error });
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Types `g` and the letter of a page, without a pause in which the first key would be forgotten. */
export function goTo(page, letter) {
  return Promise.all([page.keyboard.press("g"), page.keyboard.press(letter)]);
}

/** Waits until the text of an element matches. */
export async function expectText(locator, pattern) {
  let text;
  await until("the text", async () => {
    text = await locator.textContent();
    return pattern.test(text);
  }).catch(() => assert.match(text ?? "", pattern));
}

/** Waits until the document has this number of elements. */
export async function expectCount(locator, count) {
  await until("the number of elements", async () => (await locator.count()) === count).catch(async () => assert.equal(await locator.count(), count));
}

/** Presses Refresh until the element is shown, for what the gateway records after a response. */
export async function refreshUntil(page, locator) {
  await until("the element", async () => {
    if (await locator.count()) return true;
    await page.getByRole("button", { name: "Refresh" }).click();
    await settle(page);
    return false;
  });
}

/** Returns the text of a stream, such as that of a download. */
export async function streamText(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts).toString();
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

/** Sends a chat to the mock provider. */
export function sendChat(model, key = KEY, headers = {}, messages = [{ role: "user", content: "Say hello" }]) {
  return fetch(`${GATEWAY}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-gateway-api-key": key, "x-gateway-provider": "mock", ...headers },
    body: JSON.stringify({ model, messages }),
  });
}

/** Records the bodies that the page sends. The debugger does not see those of `Request` objects. */
export async function recordBodies(page) {
  const sent = [];
  await page.exposeFunction("reportBody", (one) => sent.push(one));
  await page.evaluate(() => {
    window.recordRequest = async (input, options) => {
      const copy = input instanceof Request ? input.clone() : new Request(input, options);
      await window.reportBody({ method: copy.method, url: copy.url, ifMatch: copy.headers.get("if-match"), body: await copy.text() });
    };
  });
  return sent;
}

/** Replaces the responses of some addresses inside the page. Rows of a million real logs take too long to write. */
export function replaceResponses({ total, pageSize }) {
  const send = window.fetch.bind(window);
  const json = (value) => new Response(JSON.stringify(value), { headers: { "content-type": "application/json" } });
  window.fetch = async (input, options) => {
    const url = new URL(input.url ?? input, location.href);
    if (url.pathname.endsWith("/v1/logs")) {
      const from = Number(url.searchParams.get("cursor") ?? 0);
      const data = Array.from({ length: Math.min(pageSize, total - from) }, (_, index) => ({ id: `row-${from + index}`, created_at: "2026-01-01T00:00:00Z", response_status_code: 200, ai_model: `model ${from + index}` }));
      const next = from + data.length;
      return json({ object: "list", data, has_more: next < total, next_cursor: next < total ? String(next) : null, partial: false });
    }
    return send(input, options);
  };
}

/** Replaces the body of a log by a large one. The test sends it, because the worker of the console requests it. */
export async function enlargeBody(page, id, chars) {
  const log = await callApi("GET", `/v1/logs/${id}?workspace_slug=*`);
  log.request.body = { model: "mock", messages: [{ role: "user", content: "x".repeat(chars) }] };
  const body = JSON.stringify(log);
  await page.route(new RegExp(`/v1/logs/${id}`), (route) => route.fulfill({ contentType: "application/json", body }));
}
