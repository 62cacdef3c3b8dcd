// Sends requests to models with the API key of the playground, and reads their responses, streamed or complete.
import { parseError } from "./errors";
import { jsonRequest, sendWithKey } from "./key-requests";
import { responseText } from "./log-detail";

export interface ChatResult {
  text: string;
  /** Milliseconds until the first text; null if there was none. */
  firstTextMs: number | null;
  /** Milliseconds until the end of the response. */
  totalMs: number;
  inputTokens: number | null;
  outputTokens: number | null;
  logId: string;
  toolCalls: ToolCall[];
}

export interface ToolCall {
  name: string;
  arguments: string;
}

interface ToolCallPart {
  index?: number;
  function?: { name?: string; arguments?: string };
}

interface Chunk {
  choices?: { delta?: { content?: string | null; tool_calls?: ToolCallPart[] }; message?: { tool_calls?: ToolCallPart[] } }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number } | null;
  error?: { message?: string };
}

/** Sends a streamed chat request. Calls `onText` with the text so far whenever more has arrived. */
export async function streamChat(path: string, headers: Record<string, string>, body: object, onText: (text: string) => void, signal: AbortSignal): Promise<ChatResult> {
  const start = performance.now();
  const response = await sendWithKey(path, { ...jsonRequest({ ...body, stream: true, stream_options: { include_usage: true } }, headers), signal });
  const result: ChatResult = { text: "", firstTextMs: null, totalMs: 0, inputTokens: null, outputTokens: null, logId: response.headers.get("x-gateway-request-id") ?? "", toolCalls: [] };
  const add = (text: string): void => {
    if (text && result.firstTextMs === null) result.firstTextMs = performance.now() - start;
    result.text += text;
    onText(result.text);
  };
  if (!response.headers.get("content-type")?.includes("event-stream") || !response.body) {
    const whole = (await response.json()) as Chunk;
    takeUsage(result, whole);
    takeToolCalls(result, whole.choices?.[0]?.message?.tool_calls);
    add(responseText(whole));
  } else {
    for await (const data of readEvents(response.body)) {
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) throw parseError(response.status, chunk);
      takeUsage(result, chunk);
      takeToolCalls(result, chunk.choices?.[0]?.delta?.tool_calls);
      add(chunk.choices?.[0]?.delta?.content ?? "");
    }
  }
  result.totalMs = performance.now() - start;
  return result;
}

function takeToolCalls(result: ChatResult, parts: ToolCallPart[] = []): void {
  for (const [at, part] of parts.entries()) {
    const call = (result.toolCalls[part.index ?? at] ??= { name: "", arguments: "" });
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
}

function takeUsage(result: ChatResult, chunk: Chunk): void {
  if (!chunk.usage) return;
  result.inputTokens = chunk.usage.prompt_tokens ?? null;
  result.outputTokens = chunk.usage.completion_tokens ?? null;
}

/** Yields the data of server-sent events until the end of the stream. */
async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      buffer += value ?? "";
      const lines = buffer.split("\n");
      buffer = done ? "" : (lines.pop() ?? "");
      for (const line of lines) {
        const data = line.startsWith("data:") ? line.slice("data:".length).trim() : "";
        if (data && data !== "[DONE]") yield data;
      }
      if (done) return;
    }
  } finally {
    // Closes a stream that nobody reads to its end.
    void reader.cancel().catch(() => undefined);
  }
}
