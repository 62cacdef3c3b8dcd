//! Static responses of the object endpoints, one route each. `$id` stands for the id in the path, `$model` for the
//! model in the body.

use super::ProviderFamily;

/// Condition on a request besides method and path for a route to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteCondition {
    Always,
    AnthropicVersion,
    Stream,
}

#[derive(Debug)]
struct StaticRoute {
    method: &'static str,
    path: &'static str,
    condition: RouteCondition,
    content_type: &'static str,
    /// Additional header lines.
    extra_headers: &'static str,
    body: &'static str,
}

/// Parts of a request that decide which route matches.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub model: &'a str,
    pub is_anthropic: bool,
    pub is_stream: bool,
}

/// Body of a response, with the headers that describe it.
#[derive(Clone, Debug)]
pub struct ResponseContents {
    pub family: ProviderFamily,
    pub content_type: &'static str,
    pub extra_headers: &'static str,
    pub body: Vec<u8>,
}

const JSON_CONTENT_TYPE: &str = "application/json";

const fn json_route(method: &'static str, path: &'static str, body: &'static str) -> StaticRoute {
    StaticRoute {
        method,
        path,
        condition: RouteCondition::Always,
        content_type: JSON_CONTENT_TYPE,
        extra_headers: "",
        body,
    }
}

const fn anthropic_route(method: &'static str, path: &'static str, body: &'static str) -> StaticRoute {
    StaticRoute { condition: RouteCondition::AnthropicVersion, ..json_route(method, path, body) }
}

const fn stream_route(path: &'static str, body: &'static str) -> StaticRoute {
    StaticRoute {
        condition: RouteCondition::Stream,
        content_type: "text/event-stream; charset=utf-8",
        ..json_route("POST", path, body)
    }
}

const fn binary_route(method: &'static str, path: &'static str, kind: &'static str, body: &'static str) -> StaticRoute {
    let extra = "content-disposition: attachment; filename=\"mock\"\r\netag: \"mock-1\"\r\n";
    StaticRoute { content_type: kind, extra_headers: extra, ..json_route(method, path, body) }
}

const IMAGE_RESPONSE: &str = r#"{"created":1700000000,"data":[{"b64_json":"cHJldGVuZA=="}],"usage":{"input_tokens":9,"output_tokens":16,"total_tokens":25,"input_tokens_details":{"text_tokens":9,"image_tokens":0}}}"#;
const FILE_OBJECT: &str = r#"{"id":"$id","object":"file","bytes":42,"created_at":1700000000,"filename":"mock.jsonl","purpose":"batch","status":"processed"}"#;
const BATCH_OBJECT: &str = r#"{"id":"$id","object":"batch","endpoint":"/v1/chat/completions","errors":null,"input_file_id":"file-mock","completion_window":"24h","status":"completed","output_file_id":"file-mock-output","error_file_id":null,"created_at":1700000000,"request_counts":{"total":1,"completed":1,"failed":0},"metadata":null}"#;
const FINE_TUNING_JOB: &str = r#"{"id":"$id","object":"fine_tuning.job","created_at":1700000000,"error":null,"fine_tuned_model":null,"finished_at":null,"hyperparameters":{"n_epochs":"auto"},"model":"mock","organization_id":"org-mock","result_files":[],"seed":1,"status":"running","trained_tokens":null,"training_file":"file-mock","validation_file":null}"#;
const BEDROCK_CUSTOMIZATION_JOB: &str = r#"{"jobArn":"arn:aws:bedrock:eu-west-1:1:model-customization-job/m/1","jobName":"$id","status":"InProgress","creationTime":"2023-11-14T22:13:20Z","baseModelArn":"arn:aws:bedrock:eu-west-1::foundation-model/mock","trainingDataConfig":{"s3Uri":"s3://data/a.jsonl"}}"#;
const VERTEX_TUNING_JOB: &str = r#"{"name":"projects/1/locations/l/tuningJobs/$id","baseModel":"mock","state":"JOB_STATE_RUNNING","createTime":"2023-11-14T22:13:20Z","supervisedTuningSpec":{"trainingDatasetUri":"gs://data/a.jsonl"},"tunedModel":{"checkpoints":[{"checkpointId":"1","step":"10","endpoint":"e-1"}]}}"#;
const FIREWORKS_TUNING_JOB: &str = r#"{"name":"accounts/a/supervisedFineTuningJobs/$id","state":"JOB_STATE_RUNNING","createTime":"2023-11-14T22:13:20Z","dataset":"accounts/a/datasets/d","baseModel":"accounts/fireworks/models/mock"}"#;
const RESPONSE_OBJECT: &str = r#"{"id":"$id","object":"response","created_at":1700000000,"status":"completed","error":null,"model":"mock","output":[{"type":"message","id":"msg-mock","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hello from the pretend provider.","annotations":[]}]}],"parallel_tool_calls":true,"tool_choice":"auto","tools":[]}"#;
const BATCH_OUTPUT_LINE: &str = "{\"id\":\"batch_req_1\",\"custom_id\":\"1\",\"response\":{\"status_code\":200,\"request_id\":\"r\",\"body\":{}},\"error\":null}\n";
const MESSAGE_BATCH: &str = r#"{"id":"$id","type":"message_batch","processing_status":"ended","request_counts":{"processing":0,"succeeded":1,"errored":0,"canceled":0,"expired":0},"ended_at":"2026-01-01T00:00:00Z","created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-02T00:00:00Z","archived_at":null,"cancel_initiated_at":null,"results_url":null}"#;
const ANTHROPIC_FILE: &str = r#"{"id":"$id","type":"file","filename":"mock.txt","mime_type":"text/plain","size_bytes":42,"created_at":"2026-01-01T00:00:00Z","downloadable":true}"#;
const ASSISTANT_OBJECT: &str = r#"{"id":"$id","object":"assistant","created_at":1700000000,"name":"mock","description":null,"model":"mock","instructions":null,"tools":[],"metadata":{}}"#;
const THREAD_OBJECT: &str =
    r#"{"id":"$id","object":"thread","created_at":1700000000,"metadata":{},"tool_resources":null}"#;
const THREAD_MESSAGE: &str = r#"{"id":"msg-mock","object":"thread.message","created_at":1700000000,"thread_id":"$id","role":"user","content":[],"metadata":{}}"#;
const THREAD_RUN: &str = r#"{"id":"run-mock","object":"thread.run","created_at":1700000000,"thread_id":"$id","assistant_id":"asst-mock","status":"completed","model":"mock","instructions":"","tools":[],"metadata":{}}"#;
const VECTOR_STORE: &str = r#"{"id":"$id","object":"vector_store","created_at":1700000000,"name":"mock","usage_bytes":0,"file_counts":{"in_progress":0,"completed":0,"failed":0,"cancelled":0,"total":0},"status":"completed","last_active_at":null,"metadata":{}}"#;

// The first matching route counts, so a route with a condition precedes the one without. `$id` becomes `mock` if the
// path has no id.
const ROUTES: &[StaticRoute] = &[
    json_route("POST", "/v1/images/generations", IMAGE_RESPONSE),
    json_route("POST", "/v1/images/edits", IMAGE_RESPONSE),
    json_route("POST", "/v1/images/variations", IMAGE_RESPONSE),
    stream_route(
        "/v1/audio/speech",
        "data: {\"type\":\"speech.audio.delta\",\"audio\":\"cHJldGVuZA==\"}\n\ndata: {\"type\":\"speech.audio.done\",\"usage\":{\"input_tokens\":4,\"output_tokens\":9,\"total_tokens\":13}}\n\n",
    ),
    binary_route("POST", "/v1/audio/speech", "audio/mpeg", "\u{0}ID3 a pretend voice \u{7f}\r\n\r\n"),
    stream_route(
        "/v1/audio/transcriptions",
        "data: {\"type\":\"transcript.text.delta\",\"delta\":\"Hello.\"}\n\ndata: {\"type\":\"transcript.text.done\",\"text\":\"Hello.\",\"usage\":{\"type\":\"tokens\",\"input_tokens\":14,\"output_tokens\":3,\"total_tokens\":17}}\n\n",
    ),
    json_route(
        "POST",
        "/v1/audio/transcriptions",
        r#"{"text":"Hello.","usage":{"type":"tokens","input_tokens":14,"output_tokens":3,"total_tokens":17}}"#,
    ),
    json_route("POST", "/v1/audio/translations", r#"{"text":"Hello."}"#),
    anthropic_route("POST", "/v1/files", ANTHROPIC_FILE),
    anthropic_route("GET", "/v1/files", r#"{"data":[],"has_more":false,"first_id":null,"last_id":null}"#),
    anthropic_route("GET", "/v1/files/:id", ANTHROPIC_FILE),
    anthropic_route("DELETE", "/v1/files/:id", r#"{"id":"$id","type":"file_deleted"}"#),
    json_route("POST", "/v1/files", FILE_OBJECT),
    json_route("GET", "/v1/files", r#"{"object":"list","data":[],"has_more":false,"first_id":null,"last_id":null}"#),
    json_route("GET", "/v1/files/:id", FILE_OBJECT),
    json_route("DELETE", "/v1/files/:id", r#"{"id":"$id","object":"file","deleted":true}"#),
    binary_route("GET", "/v1/files/:id/content", "application/octet-stream", BATCH_OUTPUT_LINE),
    json_route("POST", "/v1/batches", BATCH_OBJECT),
    json_route("GET", "/v1/batches", r#"{"object":"list","data":[],"has_more":false,"first_id":null,"last_id":null}"#),
    json_route("GET", "/v1/batches/:id", BATCH_OBJECT),
    json_route("POST", "/v1/batches/:id/cancel", BATCH_OBJECT),
    json_route("POST", "/v1/fine_tuning/jobs", FINE_TUNING_JOB),
    json_route("GET", "/v1/fine_tuning/jobs", r#"{"object":"list","data":[],"has_more":false}"#),
    json_route("GET", "/v1/fine_tuning/jobs/:id", FINE_TUNING_JOB),
    json_route("POST", "/v1/fine_tuning/jobs/:id/cancel", FINE_TUNING_JOB),
    json_route(
        "GET",
        "/v1/fine_tuning/jobs/:id/events",
        r#"{"object":"list","data":[{"id":"ev-mock","object":"fine_tuning.job.event","created_at":1700000000,"level":"info","message":"$id"}],"has_more":false}"#,
    ),
    json_route(
        "GET",
        "/v1/fine_tuning/jobs/:id/checkpoints",
        r#"{"object":"list","data":[{"id":"ckpt-mock","object":"fine_tuning.job.checkpoint","created_at":1700000000,"fine_tuned_model_checkpoint":"ft:mock:1","step_number":10,"metrics":{"step":10,"train_loss":0.5},"fine_tuning_job_id":"$id"}],"first_id":"ckpt-mock","last_id":"ckpt-mock","has_more":false}"#,
    ),
    json_route(
        "POST",
        "/model-customization-jobs",
        r#"{"jobArn":"arn:aws:bedrock:eu-west-1:1:model-customization-job/m/1"}"#,
    ),
    json_route("GET", "/model-customization-jobs", r#"{"modelCustomizationJobSummaries":[]}"#),
    json_route("GET", "/model-customization-jobs/:id", BEDROCK_CUSTOMIZATION_JOB),
    json_route("POST", "/model-customization-jobs/:id/stop", "{}"),
    json_route("POST", "/v1/projects/:id/locations/:id/tuningJobs", VERTEX_TUNING_JOB),
    json_route("GET", "/v1/projects/:id/locations/:id/tuningJobs", "{}"),
    json_route("GET", "/v1/projects/:id/locations/:id/tuningJobs/:id", VERTEX_TUNING_JOB),
    json_route("POST", "/v1/projects/:id/locations/:id/tuningJobs/:id", "{}"),
    json_route("POST", "/v1/accounts/:id/supervisedFineTuningJobs", FIREWORKS_TUNING_JOB),
    json_route("GET", "/v1/accounts/:id/supervisedFineTuningJobs", r#"{"supervisedFineTuningJobs":[]}"#),
    json_route("GET", "/v1/accounts/:id/supervisedFineTuningJobs/:id", FIREWORKS_TUNING_JOB),
    json_route("POST", "/v1/accounts/:id/supervisedFineTuningJobs/:id", "{}"),
    json_route("GET", "/v1/responses/:id", RESPONSE_OBJECT),
    json_route("DELETE", "/v1/responses/:id", r#"{"id":"$id","object":"response.deleted","deleted":true}"#),
    json_route(
        "GET",
        "/v1/responses/:id/input_items",
        r#"{"object":"list","data":[{"type":"message","id":"msg-mock","role":"user","content":[{"type":"input_text","text":"hi"}]}],"first_id":"msg-mock","last_id":"msg-mock","has_more":false}"#,
    ),
    json_route(
        "POST",
        "/v1/rerank",
        r#"{"id":"rerank-mock","model":"$model","results":[{"index":0,"relevance_score":0.9}],"meta":{"billed_units":{"search_units":1}}}"#,
    ),
    json_route(
        "POST",
        "/v1/ocr",
        r#"{"model":"$model","pages":[{"index":0,"markdown":"a pretend page","images":[],"dimensions":null}],"usage_info":{"pages_processed":1}}"#,
    ),
    json_route("POST", "/v1/messages/count_tokens", r#"{"input_tokens":12}"#),
    json_route("POST", "/v1/messages/batches", MESSAGE_BATCH),
    json_route("GET", "/v1/messages/batches", r#"{"data":[],"has_more":false,"first_id":null,"last_id":null}"#),
    json_route("GET", "/v1/messages/batches/:id", MESSAGE_BATCH),
    json_route("POST", "/v1/messages/batches/:id/cancel", MESSAGE_BATCH),
    json_route("DELETE", "/v1/messages/batches/:id", r#"{"id":"$id","type":"message_batch_deleted"}"#),
    json_route("POST", "/v1/assistants", ASSISTANT_OBJECT),
    json_route("GET", "/v1/assistants/:id", ASSISTANT_OBJECT),
    json_route("DELETE", "/v1/assistants/:id", r#"{"id":"$id","object":"assistant.deleted","deleted":true}"#),
    json_route("POST", "/v1/threads", THREAD_OBJECT),
    json_route("GET", "/v1/threads/:id", THREAD_OBJECT),
    json_route("DELETE", "/v1/threads/:id", r#"{"id":"$id","object":"thread.deleted","deleted":true}"#),
    json_route("POST", "/v1/threads/:id/messages", THREAD_MESSAGE),
    json_route("POST", "/v1/threads/:id/runs", THREAD_RUN),
    json_route("POST", "/v1/vector_stores", VECTOR_STORE),
    json_route("GET", "/v1/vector_stores/:id", VECTOR_STORE),
    json_route("DELETE", "/v1/vector_stores/:id", r#"{"id":"$id","object":"vector_store.deleted","deleted":true}"#),
];

/// Returns the response of the first matching route.
pub fn find_response(query: RouteQuery<'_>) -> Option<ResponseContents> {
    ROUTES.iter().find_map(|row| {
        let has = match row.condition {
            RouteCondition::Always => true,
            RouteCondition::AnthropicVersion => query.is_anthropic,
            RouteCondition::Stream => query.is_stream,
        };
        if !has || row.method != query.method {
            return None;
        }
        let id = match_path(row.path, query.path)?;
        let body = row.body.replace("$id", id).replace("$model", query.model).into_bytes();
        let family = if row.condition == RouteCondition::AnthropicVersion {
            ProviderFamily::Anthropic
        } else {
            ProviderFamily::from_path(query.path)
        };
        Some(ResponseContents { family, content_type: row.content_type, extra_headers: row.extra_headers, body })
    })
}

/// Returns the last path segment that the pattern marks with `:id`, or `mock` if it marks none; `None` if the path does
/// not match.
fn match_path<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let mut id = "mock";
    let mut segments = path.split('/');
    for pattern_segment in pattern.split('/') {
        match segments.next()? {
            segment if pattern_segment == ":id" && !segment.is_empty() => id = segment,
            segment if segment == pattern_segment => (),
            _ => return None,
        }
    }
    segments.next().is_none().then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE_QUERY: RouteQuery<'_> =
        RouteQuery { method: "GET", path: "/v1/files/f-1", model: "m", is_anthropic: false, is_stream: false };

    #[test]
    fn each_route_serves_its_content_type() {
        for row in ROUTES {
            let path = row.path.replace(":id", "x-1");
            let anthropic = row.condition == RouteCondition::AnthropicVersion;
            let stream = row.condition == RouteCondition::Stream;
            let response = find_response(RouteQuery {
                method: row.method,
                path: &path,
                is_anthropic: anthropic,
                is_stream: stream,
                ..FILE_QUERY
            })
            .unwrap();
            assert_eq!(response.content_type, row.content_type, "{path}");
            if row.content_type == JSON_CONTENT_TYPE {
                assert!(serde_json::from_slice::<serde_json::Value>(&response.body).unwrap().is_object(), "{path}");
            }
        }
    }

    #[test]
    fn returns_path_id_in_client_format() {
        let text = |query| String::from_utf8(find_response(query).unwrap().body).unwrap();
        assert!(text(FILE_QUERY).contains(r#""id":"f-1","object":"file""#));
        assert!(text(RouteQuery { is_anthropic: true, ..FILE_QUERY }).contains(r#""id":"f-1","type":"file""#));
        assert!(find_response(RouteQuery { path: "/v1/files/a/b", ..FILE_QUERY }).is_none());
    }
}
