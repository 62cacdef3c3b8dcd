// A logged request as the playground sends it again: as a chat request of OpenAI, from any of the usual API formats.

type Dictionary = Record<string, unknown>;

export interface ReplayMessage {
  role: string;
  /** Text of the message. Content other than text is shown as JSON. */
  content: string;
  /** The message as it was sent, if it has more than a role and a text. */
  whole?: Dictionary;
}

export interface Replay {
  messages: ReplayMessage[];
  model: string;
  temperature: string;
  maxTokens: string;
  /** JSON of the tools, and of the other parameters; empty for none. */
  tools: string;
  parameters: string;
  /** Parts of the request that a chat request cannot have. */
  omitted: string[];
}

/** Parts of a chat request that have a field of their own, or that the playground chooses itself. */
const OWN = ["messages", "model", "stream", "stream_options", "tools", "temperature", "max_tokens"];
const RESPONSES = "createModelResponse";
const ANTHROPIC = "messages";

const isDictionary = (value: unknown): value is Dictionary => typeof value === "object" && value !== null && !Array.isArray(value);
const listOf = (value: unknown): Dictionary[] => (Array.isArray(value) ? value.filter(isDictionary) : []);
const pretty = (value: unknown): string => (value === undefined ? "" : JSON.stringify(value, null, 2));
const amount = (value: unknown): string => (typeof value === "number" ? String(value) : "");

/** Returns true if a logged request can be sent again as a chat. */
export function isReplayable(body: unknown, operation: string): boolean {
  if (!isDictionary(body)) return false;
  return operation === RESPONSES ? typeof body.input === "string" || Array.isArray(body.input) : Array.isArray(body.messages) && body.messages.length > 0;
}

/** Returns a logged request as a chat; `null` if it is none. `operation` is the one of the log. */
export function replayOf(body: unknown, operation: string): Replay | null {
  if (!isDictionary(body) || !isReplayable(body, operation)) return null;
  const omitted = new Set<string>();
  const chat = operation === RESPONSES ? fromResponses(body, omitted) : operation === ANTHROPIC ? fromAnthropic(body, omitted) : body;
  const others = Object.fromEntries(Object.entries(chat).filter(([name, value]) => !OWN.includes(name) && value !== undefined));
  return {
    messages: listOf(chat.messages).map(toMessage),
    model: typeof chat.model === "string" ? chat.model : "",
    temperature: amount(chat.temperature),
    maxTokens: amount(chat.max_tokens),
    tools: listOf(chat.tools).length ? pretty(chat.tools) : "",
    parameters: Object.keys(others).length ? pretty(others) : "",
    omitted: [...omitted],
  };
}

function shownContent(content: unknown): string {
  if (typeof content === "string") return content;
  return content === null || content === undefined ? "" : pretty(content);
}

function toMessage(message: Dictionary): ReplayMessage {
  const shown = { role: String(message.role ?? "user"), content: shownContent(message.content) };
  const isPlain = typeof message.content === "string" && Object.keys(message).every((name) => name === "role" || name === "content");
  return isPlain ? shown : { ...shown, whole: message };
}

/** Returns a message as it is sent: with the parts that the editor does not show, and with edited content. */
export function sentMessage({ role, content, whole }: ReplayMessage): Dictionary {
  if (!whole) return { role, content };
  return { ...whole, role, content: content === shownContent(whole.content) ? (whole.content ?? null) : parseContent(content, whole.content) };
}

function parseContent(text: string, before: unknown): unknown {
  if (!Array.isArray(before)) return text;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

/** Converts the content of a message, part by part. Adds parts without an equivalent to `omitted`. */
function convertParts(content: unknown, convert: (part: Dictionary) => Dictionary | null, omitted: Set<string>): unknown {
  if (!Array.isArray(content)) return content;
  return listOf(content).flatMap((part) => {
    const converted = convert(part);
    if (!converted) omitted.add(String(part.type ?? "content"));
    return converted ? [converted] : [];
  });
}

const toText = (text: unknown): Dictionary => ({ type: "text", text: String(text ?? "") });
const toImage = (url: unknown): Dictionary => ({ type: "image_url", image_url: { url: String(url ?? "") } });

function fromAnthropicPart(part: Dictionary): Dictionary | null {
  const source = isDictionary(part.source) ? part.source : {};
  if (part.type === "text") return toText(part.text);
  if (part.type !== "image") return null;
  return toImage(source.type === "url" ? source.url : `data:${String(source.media_type)};base64,${String(source.data)}`);
}

function fromResponsesPart(part: Dictionary): Dictionary | null {
  if (part.type === "input_text" || part.type === "output_text" || part.type === "text") return toText(part.text);
  return part.type === "input_image" && typeof part.image_url === "string" ? toImage(part.image_url) : null;
}

/** Returns the tools of an API format as functions of a chat. Tools that run at the provider have no equivalent. */
function convertTools(tools: unknown, schemaName: string, omitted: Set<string>): Dictionary[] {
  return listOf(tools).flatMap((tool) => {
    if (!isDictionary(tool[schemaName])) {
      omitted.add(`tool ${String(tool.name ?? tool.type ?? "")}`);
      return [];
    }
    return [{ type: "function", function: { name: tool.name, ...(tool.description ? { description: tool.description } : {}), parameters: tool[schemaName] } }];
  });
}

/** Adds the names of the fields that a conversion does not know. */
function noteOthers(body: Dictionary, known: string[], omitted: Set<string>): void {
  for (const name of Object.keys(body)) if (!known.includes(name)) omitted.add(name);
}

function fromAnthropic(body: Dictionary, omitted: Set<string>): Dictionary {
  noteOthers(body, ["model", "messages", "system", "max_tokens", "temperature", "top_p", "stop_sequences", "tools", "stream"], omitted);
  const convert = (content: unknown): unknown => convertParts(content, fromAnthropicPart, omitted);
  const messages = listOf(body.messages).map(({ role, content }) => ({ role, content: convert(content) }));
  const system = body.system === undefined ? [] : [{ role: "system", content: convert(body.system) }];
  return {
    model: body.model,
    messages: [...system, ...messages].filter(({ content }) => !Array.isArray(content) || content.length > 0),
    max_tokens: body.max_tokens,
    temperature: body.temperature,
    top_p: body.top_p,
    stop: body.stop_sequences,
    tools: convertTools(body.tools, "input_schema", omitted),
  };
}

function fromResponses(body: Dictionary, omitted: Set<string>): Dictionary {
  noteOthers(body, ["model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "tools", "stream", "store"], omitted);
  const items = typeof body.input === "string" ? [{ role: "user", content: body.input }] : listOf(body.input);
  const messages = items.flatMap((item: Dictionary) => {
    if (typeof item.role === "string") return [{ role: item.role, content: convertParts(item.content, fromResponsesPart, omitted) }];
    omitted.add(String(item.type ?? "input"));
    return [];
  });
  const system = typeof body.instructions === "string" ? [{ role: "system", content: body.instructions }] : [];
  return {
    model: body.model,
    messages: [...system, ...messages],
    max_tokens: body.max_output_tokens,
    temperature: body.temperature,
    top_p: body.top_p,
    tools: convertTools(body.tools, "parameters", omitted),
  };
}
