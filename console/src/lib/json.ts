// JSON in text fields: the position of an error, and indented JSON.

export interface JsonProblem {
  line: number;
  column: number;
  message: string;
}

/** Returns the position of the first JSON error in a text; `null` if the text is valid JSON. */
export function jsonProblem(text: string): JsonProblem | null {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const position = Number(/position (\d+)/.exec(message)?.[1] ?? text.length);
    const before = text.slice(0, position).split("\n");
    const reason = message.replace(/\s*\(line \d+ column \d+\)/, "").replace(/ in JSON at position \d+.*/, "").replace(/, .* is not valid JSON/, "");
    return { line: before.length, column: (before.at(-1)?.length ?? 0) + 1, message: reason || "this is no JSON" };
  }
}

/** Returns a value as indented JSON. Text that is not valid JSON stays as it is. */
export function prettyJson(value: unknown): string {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
