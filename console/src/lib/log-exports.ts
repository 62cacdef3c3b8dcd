// Fields that exports of logs can have.
import type { Schema } from "./api";

type DataField = Schema["CreateExport"]["requested_data"][number];

/** Fields that an export contains, unless the organisation excludes them. */
export const EXPORT_FIELDS: DataField[] = ["id", "trace_id", "created_at", "ai_org", "ai_model", "req_units", "res_units", "total_units", "cost", "response_time", "response_status_code", "is_success", "mode", "config", "prompt_slug", "metadata"];
export const BODY_FIELDS: DataField[] = ["request", "response"];
