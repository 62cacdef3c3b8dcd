//! Fine-tuning jobs in the `OpenAI` format at providers with other formats.

use std::{fs, sync::Arc, time::Duration};

use crate::harness::{
    TestGateway, TestRequest,
    golden_provider::{GoldenProvider, golden_case},
    scripted_server::{ScriptedServer, json_response, read_request},
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const JOBS_PATH: &str = "/v1/fine_tuning/jobs";
const JOB_PATH: &str = "/v1/fine_tuning/jobs/job-1";
const CANCEL_PATH: &str = "/v1/fine_tuning/jobs/job-1/cancel";
const VERTEX_JOBS_PATH: &str = "/v1/projects/p/locations/europe-west4/tuningJobs";

/// Golden case, method and path of the client's request, and the requests that the provider receives.
const JOB_CASES: [(&str, &str, &str, &[&str]); 13] = [
    ("bedrock/createFinetune", "POST", JOBS_PATH, &["POST /model-customization-jobs"]),
    ("bedrock/retrieveFinetune", "GET", JOB_PATH, &["GET /model-customization-jobs/job-1"]),
    (
        "bedrock/cancelFinetune",
        "POST",
        CANCEL_PATH,
        &["POST /model-customization-jobs/job-1/stop", "GET /model-customization-jobs/job-1"],
    ),
    (
        "bedrock/listFinetunes",
        "GET",
        "/v1/fine_tuning/jobs?limit=1&after=job-3",
        &["GET /model-customization-jobs?maxResults=1000&sortBy=CreationTime&sortOrder=Descending"],
    ),
    ("vertex-ai/createFinetune", "POST", JOBS_PATH, &["POST PLACE"]),
    ("vertex-ai/retrieveFinetune", "GET", JOB_PATH, &["GET PLACE/job-1"]),
    ("vertex-ai/cancelFinetune", "POST", CANCEL_PATH, &["POST PLACE/job-1:cancel", "GET PLACE/job-1"]),
    ("vertex-ai/listFinetunes", "GET", JOBS_PATH, &["GET PLACE?pageSize=100"]),
    ("vertex-ai/listFinetuneCheckpoints", "GET", "/v1/fine_tuning/jobs/job-1/checkpoints", &["GET PLACE/job-1"]),
    ("fireworks-ai/createFinetune", "POST", JOBS_PATH, &["POST /v1/accounts/acme/supervisedFineTuningJobs"]),
    ("fireworks-ai/retrieveFinetune", "GET", JOB_PATH, &["GET /v1/accounts/acme/supervisedFineTuningJobs/job-1"]),
    (
        "fireworks-ai/cancelFinetune",
        "POST",
        CANCEL_PATH,
        &[
            "POST /v1/accounts/acme/supervisedFineTuningJobs/job-1:cancel",
            "GET /v1/accounts/acme/supervisedFineTuningJobs/job-1",
        ],
    ),
    ("fireworks-ai/listFinetunes", "GET", JOBS_PATH, &["GET /v1/accounts/acme/supervisedFineTuningJobs?pageSize=200"]),
];

/// Builds a job request with all headers that these providers need.
fn job_request(
    golden_provider: &GoldenProvider,
    provider: &str,
    (method, path): (&str, &str),
    body: Vec<u8>,
) -> TestRequest {
    let body = if method == "POST" { body } else { Vec::new() };
    let request = golden_provider
        .build_request(provider, path, body)
        .method(method)
        .header("x-gateway-fireworks-account-id", "acme");
    request
        .header("x-gateway-aws-access-key-id", "AKID")
        .header("x-gateway-aws-secret-access-key", "s3cret")
        .header("x-gateway-aws-s3-bucket", "results")
        .header("x-gateway-aws-customization-role-arn", "arn:aws:iam::123456789012:role/tuner")
}

#[tokio::test]
async fn creates_shows_lists_and_cancels_translated_jobs() {
    for (provider_name, method, path, lines) in JOB_CASES {
        let case = golden_case(&format!("{provider_name}/complete"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let provider = provider_name.split('/').next().unwrap();
        let golden_provider = GoldenProvider::start(201, "application/json", read("response.json"), 90).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let body = if path == JOBS_PATH { read("request.json") } else { Vec::new() };
        let reply = gateway.send(job_request(&golden_provider, provider, (method, path), body)).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{}", reply.text());
        let (mut actual, mut expected) =
            (reply.json(), serde_json::from_slice::<Value>(&read("client_response.json")).unwrap());
        if provider_name == "bedrock/createFinetune" {
            // The gateway generates the name of a job from the current time if the client sends none.
            let id = actual["id"].as_str().unwrap().to_owned();
            assert!(id.starts_with("my-model-") && golden_provider.parse_last_request().1["jobName"] == *id, "{id}");
            for job in [&mut actual, &mut expected] {
                job.as_object_mut().unwrap().retain(|key, _| key != "id" && key != "created_at");
            }
        } else if method == "POST" && path == JOBS_PATH {
            assert_eq!(
                golden_provider.parse_last_request().1,
                serde_json::from_slice::<Value>(&read("upstream_request.json")).unwrap(),
                "{provider_name}"
            );
        }
        assert_eq!(actual, expected, "{provider_name}");
        let lines: Vec<_> =
            lines.iter().map(|line| format!("{} HTTP/1.1", line.replace("PLACE", VERTEX_JOBS_PATH))).collect();
        assert_eq!(*golden_provider.request_lines.lock().unwrap(), lines, "{provider_name}");
        let head = String::from_utf8(golden_provider.last_request.lock().unwrap().clone()).unwrap();
        let is_signed = head.contains("/eu-west-1/bedrock/aws4_request");
        assert_eq!(
            (is_signed, head.contains("authorization: Bearer sk-1")),
            (provider == "bedrock", provider != "bedrock")
        );
        assert!(!head.contains("s3cret"), "{head}");
    }
}

#[tokio::test]
async fn cancel_and_lookup_share_one_request_timeout() {
    let provider = ScriptedServer::start(|mut stream, _| async move {
        while read_request(&mut stream).await.is_some() {
            tokio::time::sleep(Duration::from_millis(200)).await;
            stream.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
        }
    })
    .await;
    let golden_provider =
        GoldenProvider { server: provider, last_request: Arc::default(), request_lines: Arc::default() };
    let cancel = job_request(&golden_provider, "vertex-ai", ("POST", CANCEL_PATH), Vec::new());
    let response =
        GoldenProvider::gateway_trusting_loopback().send(cancel.header("x-gateway-request-timeout", "300")).await;
    assert_eq!(response.status, 408, "{}", response.text());
}

#[tokio::test]
async fn reports_unsupported_job_operations_and_provider_errors() {
    let case = golden_case("bedrock/retrieveFinetune/error");
    let golden_provider =
        GoldenProvider::start(404, "application/json", fs::read(case.path("response.json")).unwrap(), 90).await;
    for path in [JOB_PATH, CANCEL_PATH] {
        let method = if path == JOB_PATH { "GET" } else { "POST" };
        let reply = GoldenProvider::gateway_trusting_loopback()
            .send(job_request(&golden_provider, "bedrock", (method, path), Vec::new()))
            .await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["message"]),
            (404, &"bedrock error: The job could not be found".into())
        );
    }
    assert_eq!(golden_provider.request_lines.lock().unwrap().len(), 2, "a job that was not cancelled is not looked at");
    for (provider, path) in [
        ("bedrock", "/v1/fine_tuning/jobs/job-1/events"),
        ("bedrock", "/v1/fine_tuning/jobs/job-1/checkpoints"),
        ("fireworks-ai", "/v1/fine_tuning/jobs/job-1/checkpoints"),
        ("vertex-ai", "/v1/fine_tuning/jobs/job-1/events"),
        ("anthropic", JOBS_PATH),
    ] {
        let reply = GoldenProvider::gateway_trusting_loopback()
            .send(job_request(&golden_provider, provider, ("GET", path), Vec::new()))
            .await;
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (500, "unsupported_operation"),
            "{provider} {path}: {}",
            reply.text()
        );
        assert!(reply.text().contains(provider) && reply.text().contains("listFinetune"), "{}", reply.text());
    }
    let request_body = fs::read(golden_case("bedrock/createFinetune/rejects_file").path("request.json")).unwrap();
    let reply = GoldenProvider::gateway_trusting_loopback()
        .send(job_request(&golden_provider, "bedrock", ("POST", JOBS_PATH), request_body))
        .await;
    assert_eq!((reply.status, reply.error_code().as_str()), (400, "untranslatable_request"), "{}", reply.text());
    assert!(reply.text().contains("training_file"), "{}", reply.text());
    assert_eq!(golden_provider.request_lines.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn mock_provider_supports_fine_tuning_jobs() {
    let mock = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    for (provider, file) in
        [("bedrock", "s3://data/a.jsonl"), ("vertex-ai", "gs://data/a.jsonl"), ("fireworks-ai", "d")]
    {
        let body = json!({"model": "mock", "training_file": file}).to_string();
        for (method, path, status) in
            [("POST", JOBS_PATH, "queued"), ("GET", JOB_PATH, "running"), ("POST", CANCEL_PATH, "running")]
        {
            let request = TestRequest::new(method, path)
                .header("x-gateway-provider", provider)
                .header("x-gateway-custom-host", &mock.url())
                .header("x-gateway-vertex-project-id", "p")
                .header("x-gateway-vertex-region", "europe-west4")
                .header("x-gateway-fireworks-account-id", "a")
                .header("x-gateway-aws-region", "eu-west-1")
                .header("x-gateway-aws-s3-bucket", "results")
                .header("x-gateway-aws-customization-role-arn", "arn:aws:iam::1:role/r")
                .header("content-type", "application/json")
                .header("authorization", "Bearer sk-1");
            let response = gateway.send(if path == JOBS_PATH { request.body(body.clone()) } else { request }).await;
            let job = response.json();
            let status = if path == JOBS_PATH && provider != "bedrock" { "running" } else { status };
            assert_eq!(
                (response.status, &job["object"], &job["status"]),
                (200, &"fine_tuning.job".into(), &status.into()),
                "{job}"
            );
            assert!(path == JOBS_PATH || job["id"] == "job-1", "{job}");
        }
    }
}
