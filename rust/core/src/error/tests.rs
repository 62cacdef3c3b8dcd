//! Bodies of errors in the API formats of clients.

use penstock_llm::api_format::ApiFormat;

use super::*;

fn body_json(error: &Error, format: ApiFormat) -> serde_json::Value {
    serde_json::from_slice(&error.to_response(format, Some("r-1")).body).unwrap()
}

#[test]
fn timeout_body_has_the_shape_of_the_spec() {
    let error = Error::Timeout { milliseconds: 50 };
    let body = body_json(&error, ApiFormat::OpenAi);
    assert_eq!((error.status(), body["error"]["type"].as_str()), (408, Some("timeout_error")));
    assert!(body["error"]["message"].as_str().unwrap().contains("50 ms"));
}

#[test]
fn anthropic_client_gets_anthropic_error_shape() {
    let error = serde_json::json!({"type": "authentication_error", "message": Error::KeyUnknown.message()});
    let expected = serde_json::json!({"type": "error", "error": error, "request_id": "r-1"});
    assert_eq!(body_json(&Error::KeyUnknown, ApiFormat::Anthropic), expected);
}

#[test]
fn key_errors_use_the_failure_envelope() {
    for error in [Error::KeyMissing, Error::KeyUnknown, Error::KeyExpired] {
        let body = body_json(&error, ApiFormat::OpenAi);
        let actual = serde_json::json!([body["status"], body["message"], body["error"]["code"]]);
        assert_eq!(actual, serde_json::json!(["failure", body["error"]["message"], "03"]));
        assert!(error.message().ends_with("Error Code: 03"));
    }
}
