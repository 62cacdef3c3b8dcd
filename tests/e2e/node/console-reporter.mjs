// Reporter of the browser tests: a line for each test with its seconds, then why tests failed. The reasons come last, so
// that the end of a long report shows them.
import { inspect } from "node:util";

/** Returns the error that a test threw. Node wraps it. */
function causeOf(error) {
  return error?.code === "ERR_TEST_FAILURE" ? (error.cause ?? error) : error;
}

/** Returns an error as text: its message first, then the stack, and what caused it. */
function describe(error) {
  return error instanceof Error ? inspect(error, { depth: 4, colors: false }) : String(error?.stack ?? inspect(error));
}

export default async function* report(events) {
  const failures = [];
  for await (const { type, data } of events) {
    if (type === "test:diagnostic") yield `# ${data.message}\n`;
    if (type === "test:stdout" || type === "test:stderr") yield data.message;
    if (type !== "test:pass" && type !== "test:fail") continue;
    const hasFailed = type === "test:fail";
    yield `${hasFailed ? "FAILED" : "ok"} ${(data.details.duration_ms / 1000).toFixed(1)} s ${data.name}\n`;
    // A file or a group fails only because of a test in it, which is reported itself.
    if (hasFailed && data.details.error?.failureType !== "subtestsFailed") failures.push(data);
  }
  for (const { name, file, line, details } of failures) {
    yield `\nFAILED: ${name}${file ? ` (${file.split("/").at(-1)}:${line})` : ""}\n${describe(causeOf(details.error))}\n`;
  }
}
