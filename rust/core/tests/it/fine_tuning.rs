//! Jobs of fine-tuning in `OpenAI`'s shape, at providers that have them in another.

use std::{fs, sync::Arc, time::Duration};

use crate::harness::{
    Ask, Rig,
    played::{Played, golden},
    scripted::{Scripted, request, whole},
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const JOBS: &str = "/v1/fine_tuning/jobs";
const JOB: &str = "/v1/fine_tuning/jobs/job-1";
const CANCEL: &str = "/v1/fine_tuning/jobs/job-1/cancel";
const AT_VERTEX: &str = "/v1/projects/p/locations/europe-west4/tuningJobs";

/// A golden case about jobs, how it is asked for, and what its provider is asked.
const ABOUT_JOBS: [(&str, &str, &str, &[&str]); 13] = [
    ("bedrock/createFinetune", "POST", JOBS, &["POST /model-customization-jobs"]),
    ("bedrock/retrieveFinetune", "GET", JOB, &["GET /model-customization-jobs/job-1"]),
    (
        "bedrock/cancelFinetune",
        "POST",
        CANCEL,
        &["POST /model-customization-jobs/job-1/stop", "GET /model-customization-jobs/job-1"],
    ),
    (
        "bedrock/listFinetunes",
        "GET",
        "/v1/fine_tuning/jobs?limit=1&after=job-3",
        &["GET /model-customization-jobs?maxResults=1000&sortBy=CreationTime&sortOrder=Descending"],
    ),
    ("vertex-ai/createFinetune", "POST", JOBS, &["POST PLACE"]),
    ("vertex-ai/retrieveFinetune", "GET", JOB, &["GET PLACE/job-1"]),
    ("vertex-ai/cancelFinetune", "POST", CANCEL, &["POST PLACE/job-1:cancel", "GET PLACE/job-1"]),
    ("vertex-ai/listFinetunes", "GET", JOBS, &["GET PLACE?pageSize=100"]),
    ("vertex-ai/listFinetuneCheckpoints", "GET", "/v1/fine_tuning/jobs/job-1/checkpoints", &["GET PLACE/job-1"]),
    ("fireworks-ai/createFinetune", "POST", JOBS, &["POST /v1/accounts/acme/supervisedFineTuningJobs"]),
    ("fireworks-ai/retrieveFinetune", "GET", JOB, &["GET /v1/accounts/acme/supervisedFineTuningJobs/job-1"]),
    (
        "fireworks-ai/cancelFinetune",
        "POST",
        CANCEL,
        &[
            "POST /v1/accounts/acme/supervisedFineTuningJobs/job-1:cancel",
            "GET /v1/accounts/acme/supervisedFineTuningJobs/job-1",
        ],
    ),
    ("fireworks-ai/listFinetunes", "GET", JOBS, &["GET /v1/accounts/acme/supervisedFineTuningJobs?pageSize=200"]),
];

/// With all that these providers want to be told.
fn about_jobs(played: &Played, provider: &str, (method, path): (&str, &str), body: Vec<u8>) -> Ask {
    let body = if method == "POST" { body } else { Vec::new() };
    let ask = played.ask(provider, path, body).method(method).header("x-gateway-fireworks-account-id", "acme");
    ask.header("x-gateway-aws-access-key-id", "AKID")
        .header("x-gateway-aws-secret-access-key", "s3cret")
        .header("x-gateway-aws-s3-bucket", "results")
        .header("x-gateway-aws-customization-role-arn", "arn:aws:iam::123456789012:role/tuner")
}

#[tokio::test]
async fn jobs_of_fine_tuning_are_begun_looked_at_listed_and_cancelled_where_they_are_called_otherwise() {
    for (named, method, path, lines) in ABOUT_JOBS {
        let case = golden(&format!("{named}/whole"));
        let read = |file: &str| fs::read(case.join(file)).unwrap();
        let provider = named.split('/').next().unwrap();
        let played = Played::answering(201, "application/json", read("answered.json"), 90).await;
        let rig = Played::rig();
        let body = if path == JOBS { read("asked.json") } else { Vec::new() };
        let told = rig.send(about_jobs(&played, provider, (method, path), body)).await;
        assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")), "{}", told.text());
        let (mut found, mut expected) = (told.json(), serde_json::from_slice::<Value>(&read("returned.json")).unwrap());
        if named == "bedrock/createFinetune" {
            // What nobody named is named after the moment.
            let id = found["id"].as_str().unwrap().to_owned();
            assert!(id.starts_with("my-model-") && played.sent().1["jobName"] == *id, "{id}");
            for job in [&mut found, &mut expected] {
                job.as_object_mut().unwrap().retain(|key, _| key != "id" && key != "created_at");
            }
        } else if method == "POST" && path == JOBS {
            assert_eq!(played.sent().1, serde_json::from_slice::<Value>(&read("sent.json")).unwrap(), "{named}");
        }
        assert_eq!(found, expected, "{named}");
        let lines: Vec<_> = lines.iter().map(|line| format!("{} HTTP/1.1", line.replace("PLACE", AT_VERTEX))).collect();
        assert_eq!(*played.lines.lock().unwrap(), lines, "{named}");
        let head = String::from_utf8(played.sent.lock().unwrap().clone()).unwrap();
        let is_signed = head.contains("/eu-west-1/bedrock/aws4_request");
        assert_eq!(
            (is_signed, head.contains("authorization: Bearer sk-1")),
            (provider == "bedrock", provider != "bedrock")
        );
        assert!(!head.contains("s3cret"), "{head}");
    }
}

#[tokio::test]
async fn to_cancel_a_job_and_to_look_at_it_have_the_time_of_one_answer() {
    let provider = Scripted::start(|mut stream, _| async move {
        while request(&mut stream).await.is_some() {
            tokio::time::sleep(Duration::from_millis(200)).await;
            stream.write_all(&whole("200 OK", "", "{}")).await.unwrap();
        }
    })
    .await;
    let played = Played { provider, sent: Arc::default(), lines: Arc::default() };
    let cancel = about_jobs(&played, "vertex-ai", ("POST", CANCEL), Vec::new());
    let told = Played::rig().send(cancel.header("x-gateway-request-timeout", "300")).await;
    assert_eq!(told.status, 408, "{}", told.text());
}

#[tokio::test]
async fn what_a_provider_has_not_of_its_jobs_and_what_it_refuses_is_told_in_openais_words() {
    let case = golden("bedrock/retrieveFinetune/error");
    let played = Played::answering(404, "application/json", fs::read(case.join("answered.json")).unwrap(), 90).await;
    for path in [JOB, CANCEL] {
        let method = if path == JOB { "GET" } else { "POST" };
        let told = Played::rig().send(about_jobs(&played, "bedrock", (method, path), Vec::new())).await;
        assert_eq!(
            (told.status, &told.json()["error"]["message"]),
            (404, &"bedrock error: The job could not be found".into())
        );
    }
    assert_eq!(played.lines.lock().unwrap().len(), 2, "a job that was not cancelled is not looked at");
    for (provider, path) in [
        ("bedrock", "/v1/fine_tuning/jobs/job-1/events"),
        ("bedrock", "/v1/fine_tuning/jobs/job-1/checkpoints"),
        ("fireworks-ai", "/v1/fine_tuning/jobs/job-1/checkpoints"),
        ("vertex-ai", "/v1/fine_tuning/jobs/job-1/events"),
        ("anthropic", JOBS),
    ] {
        let told = Played::rig().send(about_jobs(&played, provider, ("GET", path), Vec::new())).await;
        assert_eq!(
            (told.status, told.code().as_str()),
            (500, "unsupported_operation"),
            "{provider} {path}: {}",
            told.text()
        );
        assert!(told.text().contains(provider) && told.text().contains("listFinetune"), "{}", told.text());
    }
    let asked = fs::read(golden("bedrock/createFinetune/refused_file/asked.json")).unwrap();
    let told = Played::rig().send(about_jobs(&played, "bedrock", ("POST", JOBS), asked)).await;
    assert_eq!((told.status, told.code().as_str()), (400, "untranslatable_request"), "{}", told.text());
    assert!(told.text().contains("training_file"), "{}", told.text());
    assert_eq!(played.lines.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn the_pretend_provider_has_jobs_too() {
    let mock = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    for (provider, file) in
        [("bedrock", "s3://data/a.jsonl"), ("vertex-ai", "gs://data/a.jsonl"), ("fireworks-ai", "d")]
    {
        let body = json!({"model": "mock", "training_file": file}).to_string();
        for (method, path, status) in [("POST", JOBS, "queued"), ("GET", JOB, "running"), ("POST", CANCEL, "running")] {
            let ask = Ask::new(method, path)
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
            let told = rig.send(if path == JOBS { ask.body(body.clone()) } else { ask }).await;
            let job = told.json();
            let status = if path == JOBS && provider != "bedrock" { "running" } else { status };
            assert_eq!(
                (told.status, &job["object"], &job["status"]),
                (200, &"fine_tuning.job".into(), &status.into()),
                "{job}"
            );
            assert!(path == JOBS || job["id"] == "job-1", "{job}");
        }
    }
}
