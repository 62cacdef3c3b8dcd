// Picture of the console for the README: the overview of an invented day, the same at each run.
import assert from "node:assert/strict";
import { test } from "node:test";

import { openTab, settle } from "./console-kit.mjs";

const { GATEWAY, README_PICTURE } = process.env;
const NOW = "2026-03-12T16:00:00Z";
const WINDOW = { width: 1280, height: 850 };
const HOURS = 24;
const MODELS = [["gpt-4o", 61.2, 4210], ["claude-sonnet-4-5", 48.9, 2630], ["gpt-4o-mini", 9.4, 9870], ["gemini-2.5-flash", 5.1, 3140]];
const KEYS = [["checkout", 58.3, 8120], ["support bot", 44.6, 6480], ["search", 21.7, 5250]];
const PROVIDERS = [["openai-main", 70.6, 14080], ["anthropic-main", 48.9, 2630], ["google-main", 5.1, 3140]];

/** Replaces the figures in responses inside the page; everything else comes from the gateway. */
function pretendFigures({ now, hours, models, keys, providers }) {
  const send = window.fetch.bind(window);
  const end = Date.parse(now);
  const wave = (hour) => 1 + Math.sin((hour - 3) / 3.8) * 0.55 + Math.sin(hour * 2.3) * 0.08;
  const points = (fields) => Array.from({ length: hours }, (_, at) => ({ timestamp: new Date(end - (hours - at) * 3_600_000).toISOString(), ...fields(at) }));
  const requests = (hour) => Math.round(830 * wave(hour));
  const failed = (hour) => (hour === 14 ? 96 : Math.round(6 * wave(hour)));
  const times = (hour) => ({ p50: 640 + 60 * wave(hour), p90: 1350 + 210 * wave(hour), p99: 2500 + 420 * wave(hour) + (hour === 14 ? 900 : 0) });
  const total = (of) => Array.from({ length: hours }, (_, at) => of(at)).reduce((sum, one) => sum + one, 0);
  const graphs = {
    requests: { summary: { total: total(requests) }, data_points: points((at) => ({ total: requests(at) })) },
    errors: { summary: { total: total(failed) }, data_points: points((at) => ({ total: failed(at) })) },
    latency: { summary: times(8), data_points: points(times) },
    cost: { summary: { total: 12460, unpriced: 0 } },
    tokens: { summary: { total: 38_400_000 } },
    "errors/rate": { summary: { rate: (100 * total(failed)) / total(requests) } },
    "cache/hit-rate": { summary: { rate: 18.4 } },
  };
  const groups = { model: ["ai_model", models], api_key: ["api_key", keys], provider: ["provider", providers] };
  window.fetch = async (input, options) => {
    const { pathname } = new URL(input.url ?? input, location.href);
    const graph = graphs[pathname.split("/v1/analytics/graphs/")[1]];
    const [field, rows] = groups[pathname.split("/v1/analytics/groups/")[1]] ?? [];
    if (!graph && !rows) return send(input, options);
    const data = rows?.map(([name, dollars, count]) => ({ [field]: name, cost: dollars * 100, requests: count, unpriced_requests: 0 }));
    const body = graph ? { object: "analytics-graph", data_points: [], ...graph } : { object: "list", total: data.length, data };
    return new Response(JSON.stringify(body), { headers: { "content-type": "application/json" } });
  };
}

test("draws the overview", async () => {
  const tab = await openTab(undefined, { isSignedIn: true, viewport: WINDOW, timezoneId: "UTC", locale: "en-GB", colorScheme: "light" });
  const { page, context } = tab;
  await context.addInitScript(pretendFigures, { now: NOW, hours: HOURS, models: MODELS, keys: KEYS, providers: PROVIDERS });
  await page.clock.setFixedTime(NOW);
  await page.evaluate(() => localStorage.setItem("penstock.theme", "light"));
  await page.goto(`${GATEWAY}/console/overview`);
  await page.getByText("claude-sonnet-4-5").waitFor();
  await page.locator("figure canvas").nth(1).waitFor();
  await settle(page);
  await page.mouse.move(WINDOW.width - 20, WINDOW.height - 20);
  const shot = () => page.screenshot({ animations: "disabled", caret: "hide" });
  const [first, second] = [await shot(), await shot()];
  assert.ok(first.equals(second), "the picture is the same twice");
  assert.ok(first.length < 200_000, `${first.length} bytes`);
  if (README_PICTURE) await page.screenshot({ animations: "disabled", caret: "hide", path: README_PICTURE });
  await context.close();
});
