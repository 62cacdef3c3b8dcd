//! Error responses in the client's API format.

use penstock_llm::api_format::{self, ApiFormat, Failure};
use penstock_net::{ResponseHead, headers::Headers};

use super::{Error, ErrorOrigin};
use crate::ingress::{message::CompleteResponse, route::ALLOWED_METHODS};

impl Error {
    fn error_type(&self) -> &'static str {
        match (self.status(), self.origin()) {
            (401, _) => "authentication_error",
            (403, _) => "permission_error",
            (408, _) => "timeout_error",
            (404, _) => "not_found_error",
            (413, _) => "request_too_large",
            (412, _) => "usage_limit_error",
            (429, _) => "rate_limit_error",
            (_, ErrorOrigin::Client) => "invalid_request_error",
            _ => "api_error",
        }
    }

    /// Builds the error response in the client's API format. `request_id` is `None` if the request has no record.
    pub fn to_response(&self, api_format: ApiFormat, request_id: Option<&str>) -> CompleteResponse {
        let mut headers = Headers::with_capacity(4);
        headers.push(b"content-type", b"application/json");
        match self.status() {
            405 => headers.push(b"allow", ALLOWED_METHODS.join(", ").as_bytes()),
            // Official SDKs repeat requests with a 5xx status, unless this header forbids it.
            501 => headers.push(b"x-should-retry", b"false"),
            503 => headers.push(b"retry-after", b"1"),
            _ => (),
        }
        if let Some(limit) = self.exceeded_limit() {
            limit.push_headers(&mut headers);
        }
        CompleteResponse {
            head: ResponseHead { status: self.status(), headers },
            body: self.encode_body(api_format, request_id).into(),
        }
    }

    fn encode_body(&self, api_format: ApiFormat, request_id: Option<&str>) -> Vec<u8> {
        let message = self.message();
        if api_format != ApiFormat::OpenAi {
            let failure =
                Failure { status: self.status(), error_type: None, message: &message, code: None, request_id };
            return api_format::error_body(api_format, &failure);
        }
        let param = self.exceeded_limit().map(|limit| &*limit.param);
        let error =
            serde_json::json!({"message": message, "type": self.error_type(), "param": param, "code": self.code()});
        let body = match self {
            Self::NotFound => serde_json::json!({"message": message, "ok": false}),
            Self::Timeout { .. } | Self::IdleTimeout { .. } => {
                serde_json::json!({"error": {"message": message, "type": self.error_type(), "param": null, "code": null}})
            }
            Self::ResponseInvalid { provider, .. } => {
                let error = serde_json::json!({"message": message, "type": null, "param": null, "code": null});
                serde_json::json!({"error": error, "provider": provider})
            }
            Self::ConfigInvalid(problems) | Self::ExplainRequestInvalid(problems) => {
                let errors: Vec<_> = problems
                    .iter()
                    .map(|p| format!("path: {}, message: {}", p.path.trim_start_matches("$."), p.message))
                    .collect();
                serde_json::json!({"status": "failure", "message": message, "errors": errors, "error": error})
            }
            // Clients of the management API read `data`, SDKs of model providers read `error`.
            Self::KeyForbidden { .. }
            | Self::TokenForbidden { .. }
            | Self::NotImplemented { .. }
            | Self::TrialFailed { .. } => serde_json::json!({
                "success": false, "data": {"message": message, "errorCode": self.code()}, "error": error
            }),
            Self::InlineOptionBlocked { field, .. } => serde_json::json!({"status": "failure", "message": message,
                "error": {"code": self.code(), "message": message, "field": field}}),
            _ => serde_json::json!({"status": "failure", "message": message, "error": error}),
        };
        body.to_string().into_bytes()
    }
}
