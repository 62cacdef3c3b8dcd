//! Dialling of upstreams as a client sees it: error codes, and redirects, which are not followed. The tests of the crate
//! `penstock-net` cover name resolution and its checks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_request, post_request,
    scripted_server::{ScriptedServer, accepts_connection_within, json_response, read_request},
};
use tokio::{io::AsyncWriteExt, net::TcpListener};

fn request_to_host(url: &str) -> TestRequest {
    post_request(CHAT_PATH, chat_body("m", false)).header("x-gateway-custom-host", url)
}

#[tokio::test]
async fn does_not_resolve_addresses_or_forbidden_names() {
    let lookups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lookups);
    let look_up = Arc::new(move |_: &str| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(vec![[127, 0, 0, 1].into()])
    });
    let gateway = TestGateway::with_resolver(look_up, |_| ());
    for host in ["127.0.0.1", "2130706433", "[::1]", "localhost", "a.internal", "kubernetes.default", "1.1.1.1.nip.io"]
    {
        assert_eq!(gateway.send(request_to_host(&format!("http://{host}"))).await.status, 400, "{host}");
    }
    assert_eq!(lookups.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn reports_connect_errors_with_their_codes() {
    let silent = ScriptedServer::start(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let gateway = TestGateway::with_resolver(Arc::new(|_| Ok(vec![[10, 0, 0, 1].into()])), |settings| {
        settings.tls_timeout_ms = 100;
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    let response = gateway.send(request_to_host(&format!("https://{}", silent.addr))).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "upstream_connect_timeout"),
        "{}",
        response.text()
    );
    assert!(response.text().contains("TLS handshake"), "{}", response.text());
    let response = gateway.send(request_to_host("http://private.example")).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"), "{}", response.text());
}

#[tokio::test]
async fn returns_redirects_without_following_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}/v1/x", listener.local_addr().unwrap());
    for status in
        ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let response_body = json_response(status, &format!("location: {elsewhere}\r\n"), "{}");
        let provider = ScriptedServer::start(move |mut stream, _| {
            let response_body = response_body.clone();
            async move {
                while read_request(&mut stream).await.is_some() {
                    stream.write_all(&response_body).await.unwrap();
                }
            }
        })
        .await;
        let response = TestGateway::for_url(&provider.url()).send(chat_request("m")).await;
        assert_eq!(
            (response.status.to_string().as_str(), response.header("location")),
            (&status[..3], Some(&*elsewhere))
        );
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(50)).await);
}
