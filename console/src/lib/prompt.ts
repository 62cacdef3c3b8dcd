// Templates of prompts: messages, and the variables in them.

export interface TemplateMessage {
  role: string;
  content: string;
}

/** Returns the messages of a template; `null` if it is not a list of messages with text. */
export function parseTemplate(template: string): TemplateMessage[] | null {
  try {
    const found = JSON.parse(template) as unknown;
    const isSimple = (one: unknown): one is TemplateMessage =>
      typeof one === "object" && one !== null && typeof (one as TemplateMessage).content === "string" && Object.keys(one).every((key) => key === "role" || key === "content");
    return Array.isArray(found) && found.every(isSimple) ? found : null;
  } catch {
    return null;
  }
}

export function formatTemplate(messages: TemplateMessage[]): string {
  return JSON.stringify(messages);
}

/** Returns a template as text for a comparison line by line. */
export function readableTemplate(template: string): string {
  const messages = parseTemplate(template);
  return messages ? messages.map((one) => `[${one.role}]\n${one.content}`).join("\n\n") : template;
}

/** Returns the tool choice of a prompt as text: a word such as `auto`, the JSON of an object, or nothing. */
export function choiceText(choice: unknown): string {
  if (choice === null || choice === undefined) return "";
  return typeof choice === "string" ? choice : JSON.stringify(choice);
}

/** Returns the tool choice that a text means; raises SyntaxError for an object that is not valid JSON. */
export function parseChoice(text: string): string | Record<string, never> | null {
  const trimmed = text.trim();
  if (trimmed.startsWith("{")) return JSON.parse(trimmed) as Record<string, never>;
  return trimmed || null;
}

/** Replaces plain variables by their values. Sections and unknown variables stay. */
export function fillVariables(text: string, values: Record<string, string>): string {
  return text.replaceAll(/\{\{\{?\s*&?\s*([A-Za-z_][\w.-]*)\s*\}?\}\}/g, (whole, name: string) => values[name] ?? whole);
}

/** Returns the names of the variables of a Mustache template, in the order in which they appear. */
export function variableNames(template: string): string[] {
  const names = [...template.matchAll(/\{\{\{?\s*[&#^]?\s*([A-Za-z_][\w.-]*)\s*\}?\}\}/g)].map((match) => match[1] ?? "");
  return [...new Set(names)];
}
