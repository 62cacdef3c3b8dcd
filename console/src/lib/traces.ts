// Traces: groups of logs, and the spans of one trace in the order of its tree.
import type { Schema } from "./api";

export interface TraceSummary {
  id: string;
  requests: number;
  errors: number;
  cost: number;
  /** Requests without a known price. */
  unpriced: number;
  last: string;
}

/** Groups logs, newest first, by their trace. */
export function groupByTrace(logs: Schema["LogRecord"][]): TraceSummary[] {
  const found = new Map<string, TraceSummary>();
  for (const log of logs) {
    const id = log.trace_id;
    if (!id) continue;
    const trace = found.get(id) ?? { id, requests: 0, errors: 0, cost: 0, unpriced: 0, last: log.created_at ?? "" };
    trace.requests++;
    trace.errors += log.is_success === false ? 1 : 0;
    trace.cost += Number(log.cost ?? 0);
    trace.unpriced += log.cost === null || log.cost === undefined ? 1 : 0;
    found.set(id, trace);
  }
  return [...found.values()];
}

export interface Span {
  id: string;
  name: string;
  status: number | null;
  start: number;
  duration: number;
  cost: number | null;
  depth: number;
}

type Node = Record<string, unknown>;

/** Returns the nodes of a tree as a list with depths. */
export function flattenTrace(nodes: Node[], depth = 0): Span[] {
  return nodes.flatMap((node) => {
    const children = Array.isArray(node.children) ? (node.children as Node[]) : [];
    const span: Span = {
      id: String(node.id ?? ""),
      name: String(node.span_name || node.ai_model || node.operation || node.request_url || ""),
      status: typeof node.response_status_code === "number" ? node.response_status_code : null,
      start: Date.parse(String(node.created_at)),
      duration: Number(node.response_time ?? 0),
      cost: node.cost === null || node.cost === undefined ? null : Number(node.cost),
      depth,
    };
    return [span, ...flattenTrace(children, depth + 1)];
  });
}
