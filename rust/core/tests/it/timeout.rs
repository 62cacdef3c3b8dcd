//! Every wait has an end: for a connection, for the first byte, for the next one.

use std::time::{Duration, Instant};

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, chat, pick, post,
    scripted::{Scripted, request},
    settled, stream, words,
};
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::{Outcome, Server};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

fn shape(milliseconds: u64) -> Value {
    let message = format!("request exceeded the timeout of {milliseconds} ms");
    json!({"error": {"message": message, "type": "timeout_error", "param": null, "code": null}})
}

fn silent() -> Ask {
    chat("mock?fault=silence")
}

#[tokio::test]
async fn a_silent_provider_is_left_after_the_time_that_the_header_the_config_or_the_settings_say() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.request_timeout_ms = 60);
    let config = r#"{"provider":"mock","request_timeout":50}"#;
    let cases = [
        (60, silent()),
        (50, silent().header("x-gateway-config", config)),
        (40, silent().header("x-gateway-config", config).header("x-gateway-request-timeout", "40")),
    ];
    for (milliseconds, ask) in cases {
        let start = Instant::now();
        let told = rig.send(ask).await;
        assert_eq!((told.status, told.json()), (408, shape(milliseconds)));
        assert!(start.elapsed() >= Duration::from_millis(milliseconds));
        let said = pick(&rig.record(), ["outcome", "error", "response_status_code"]);
        assert_eq!(said, json!(["refused", "timeout", 408]));
    }
    // A head is no byte of the answer.
    let begun = stream(CHAT, "mock?fault=slow_first").header("x-gateway-request-timeout", "40");
    let told = rig.send(begun).await;
    assert_eq!((told.status, told.json()), (408, shape(40)));
    let ended: Vec<_> = settled(&provider, 4).await.iter().map(|entry| entry.outcome).collect();
    assert_eq!(ended, [Outcome::ClientClosed; 4]);
}

#[tokio::test]
async fn what_the_client_says_of_its_own_patience_holds_without_a_config_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for name in ["x-stainless-timeout", "x-stainless-read-timeout"] {
        let start = Instant::now();
        assert_eq!(rig.send(silent().header(name, "0.1")).await.status, 408, "{name}");
        assert!(start.elapsed() < Duration::from_secs(2), "{name}");
        for word in ["NOT_GIVEN", "-1", "0", "1e19", "1e300", "inf"] {
            for config in [r#"{"provider":"mock"}"#, r#"{"provider":"mock","retry":{"attempts":1}}"#] {
                let ask = chat("mock").header(name, word).header("x-gateway-config", config);
                assert_eq!(rig.send(ask).await.status, 200, "{name}: {word}");
            }
        }
    }
}

#[tokio::test]
async fn a_saved_config_brings_its_timeout() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"provider": "mock", "request_timeout": 30});
    rig.apply(&json!({"epoch": "1", "configs": [{"slug": "pc-1", "config": config}]}));
    let told = rig.send(silent().header("x-gateway-config", "pc-1")).await;
    assert_eq!((told.status, told.json()), (408, shape(30)));
}

#[tokio::test]
async fn an_anthropic_caller_is_told_in_its_own_shape() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let ask = post(MESSAGES, words("mock?fault=silence", false)).header("x-gateway-request-timeout", "30");
    let told = rig.send(ask).await;
    assert_eq!((told.status, &told.json()["type"]), (408, &json!("error")));
    assert_eq!(told.json()["error"]["type"], "timeout_error");
}

#[tokio::test]
async fn only_the_first_byte_is_waited_for() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(stream(CHAT, "mock?chunks=8&chunk_ms=30").header("x-gateway-request-timeout", "120")).await;
    assert_eq!((told.status, told.cut), (200, false));
    assert!(told.body.ends_with(b"data: [DONE]\n\n"), "{}", told.text());
}

#[tokio::test]
async fn a_slow_answer_in_time_is_an_answer() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let ask = chat("mock?first_ms=50").header("x-gateway-request-timeout", "5000");
    assert_eq!(rig.send(ask).await.status, 200);
    let waited = rig.record()["upstream_response_time"].as_f64().unwrap();
    assert!((50.0..5000.0).contains(&waited), "{waited}");
}

#[tokio::test]
async fn a_timeout_that_is_no_number_of_milliseconds_is_refused() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for value in ["0", "-1", "soon", "1.5", "99999999999999999999999"] {
        let told = rig.send(chat("mock").header("x-gateway-request-timeout", value)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_header"), "{value}");
    }
    let told = rig.send(chat("mock").header("x-gateway-request-timeout", &u64::MAX.to_string())).await;
    assert_eq!(told.status, 200);
}

#[tokio::test]
async fn a_silence_within_a_stream_ends_it_with_an_error_event() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.idle_timeout_ms = 80);
    let start = Instant::now();
    let told = rig.send(stream(CHAT, "mock?fault=stall&after=2")).await;
    assert_eq!(told.last_event(), (None, silence(80)));
    assert!(start.elapsed() < Duration::from_secs(3));
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::ClientClosed);
    // Where more time is given than a heartbeat takes, the head does not wait for the first byte.
    let patient = stream(CHAT, "mock?fault=slow_first&first_ms=5000").header("x-gateway-request-timeout", "20000");
    let told = rig.send(patient).await;
    assert_eq!(told.last_event(), (None, silence(80)));
    let told = rig.send(stream(MESSAGES, "mock?fault=stall&after=2")).await;
    let (name, data) = told.last_event();
    assert_eq!((name.as_deref(), &data["error"]["type"]), (Some("error"), &json!("timeout_error")));
    assert_eq!(data["error"]["message"], silence(80)["error"]["message"]);
}

fn silence(milliseconds: u64) -> Value {
    let message = format!("the provider's answer broke off: nothing came for {milliseconds} ms");
    json!({"error": {"message": message, "type": "timeout_error", "param": null, "code": "idle_timeout"}})
}

#[tokio::test]
async fn a_stream_whose_every_pause_is_short_may_last() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.idle_timeout_ms = 300);
    let told = rig.send(stream(CHAT, "mock?chunks=10&chunk_ms=50")).await;
    assert!(told.body.ends_with(b"data: [DONE]\n\n"), "{}", told.text());
}

#[tokio::test]
async fn a_silence_within_a_whole_answer_is_a_timeout() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.idle_timeout_ms = 80);
    let told = rig.send(chat("mock?fault=stall")).await;
    let mut expected = silence(80);
    expected["error"]["code"] = Value::Null;
    assert_eq!((told.status, told.json()), (408, expected));
    assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["refused", "idle_timeout"]));
}

/// Sends a head at once and then a byte every ten milliseconds, for ever.
async fn dripping(kind: &str, length: usize) -> Scripted {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    Scripted::start(move |mut io, _| {
        let head = head.clone();
        async move {
            request(&mut io).await;
            let _ = io.write_all(head.as_bytes()).await;
            while io.write_all(b" ").await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_whole_answer_must_be_there_in_time_however_busily_it_comes() {
    let provider = dripping("application/json", 100_000).await;
    let rig = Rig::at(&provider.url());
    let start = Instant::now();
    let told = rig.send(chat("m").header("x-gateway-request-timeout", "120")).await;
    assert_eq!((told.status, told.json()), (408, shape(120)));
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_whole_answer_that_is_too_large_to_be_held_has_no_more_time_than_others() {
    let provider = dripping("application/json", 1_000_000).await;
    let rig = Rig::at(&provider.url());
    let start = Instant::now();
    let told = rig.send(chat("m").header("x-gateway-request-timeout", "120")).await;
    assert_eq!((told.status, told.streamed, told.cut), (200, true, true));
    assert!((Duration::from_millis(120)..Duration::from_secs(3)).contains(&start.elapsed()));
    assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["cut", "timeout"]));
}

#[tokio::test]
async fn a_body_that_takes_longer_to_come_than_the_provider_may_is_no_timeout() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let (feeder, reading) = feed_channel(|| ());
    let ask = crate::harness::Ask::new("POST", "/v1/files")
        .header("x-gateway-provider", "mock")
        .header("x-gateway-request-timeout", "60")
        .with(Body::Streamed(reading, None));
    let uploading = tokio::spawn(async move {
        for _ in 0..5 {
            sleep(Duration::from_millis(80)).await;
            feeder.push("piece".into());
        }
        feeder.finish(BodyEnd::Complete);
    });
    let told = rig.send(ask).await;
    uploading.await.unwrap();
    assert_eq!(told.status, 200, "{}", told.text());
}

#[tokio::test]
async fn a_provider_that_stops_reading_an_upload_is_left() {
    let provider = Scripted::start(|io, _| async move {
        sleep(Duration::from_secs(20)).await;
        drop(io);
    })
    .await;
    let rig = Rig::at(&provider.url());
    let (feeder, reading) = feed_channel(|| ());
    // More than all buffers on the way hold.
    for _ in 0..64 {
        feeder.push(vec![0; 1024 * 1024].into());
    }
    let ask = crate::harness::Ask::new("POST", "/v1/files")
        .header("x-gateway-provider", "mock")
        .header("x-gateway-request-timeout", "150")
        .with(Body::Streamed(reading, None));
    let start = Instant::now();
    let told = rig.send(ask).await;
    assert_eq!((told.status, told.json()), (408, shape(150)));
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_port_that_takes_no_connection_is_a_bad_gateway() {
    let rig = Rig::at("http://127.0.0.1:1");
    let told = rig.send(chat("m")).await;
    assert_eq!((told.status, told.code().as_str()), (502, "upstream_connect_failed"));
}

#[tokio::test]
async fn a_port_that_does_not_answer_is_left_after_the_connect_timeout() {
    // A listener whose queue is full drops what comes on top, as a host that is down would.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(100), TcpStream::connect(addr)).await {
        queued.push(connected.unwrap());
    }
    let rig = Rig::with(&format!("http://{addr}"), |settings| settings.connect_timeout_ms = 80);
    let start = Instant::now();
    let told = rig.send(chat("m")).await;
    assert_eq!((told.status, told.code().as_str()), (503, "upstream_connect_timeout"));
    assert_eq!(told.header("retry-after"), Some("1"));
    assert!(start.elapsed() < Duration::from_secs(1));
    let told = rig.send(chat("m").header("x-gateway-request-timeout", "20")).await;
    assert_eq!((told.status, told.json()), (408, shape(20)));
}

#[tokio::test]
async fn an_answer_that_comes_too_late_reaches_nobody_else() {
    let provider = Scripted::start(|mut io, _| async move {
        while let Some(asked) = request(&mut io).await {
            let late = String::from_utf8_lossy(&asked).contains("late");
            if late {
                sleep(Duration::from_millis(60)).await;
            }
            let answer = crate::harness::scripted::whole("200 OK", "", if late { "\"late\"" } else { "\"soon\"" });
            let _ = io.write_all(&answer).await;
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    assert_eq!(rig.send(chat("soon")).await.text(), "\"soon\"");
    assert_eq!(rig.send(chat("late").header("x-gateway-request-timeout", "20")).await.status, 408);
    sleep(Duration::from_millis(80)).await;
    assert_eq!(rig.send(chat("soon")).await.text(), "\"soon\"");
    assert_eq!(provider.connections(), 2);
}
