//! Outbound HTTP proxy. Uses a tunnel for https and the absolute URL for http, sends the proxy password to the proxy
//! only, and still rejects forbidden hosts.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, post_request,
    scripted_server::{ScriptedServer, json_response, read_request, read_request_head},
    tls::{tls_acceptor, tls_file},
    wait_until,
};
use penstock_core::process::{secret::Secret, settings::Settings};
use penstock_net::LookupFn;
use tokio::{
    io::{AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
};

/// Proxy that connects every request to one provider, whatever its target, and records the request heads.
struct MockProxy {
    server: ScriptedServer,
    request_heads: Arc<Mutex<Vec<String>>>,
}

impl MockProxy {
    async fn start(provider: SocketAddr) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&heads);
        let scripted =
            ScriptedServer::start(move |stream, _| forward_connection(stream, provider, Arc::clone(&shared))).await;
        Self { server: scripted, request_heads: heads }
    }

    /// Returns the URL with a password. Its host name resolves only in the resolver of these tests.
    fn url(&self) -> String {
        format!("http://alice:sesame@proxy.internal:{}", self.server.addr.port())
    }

    fn take_request_heads(&self) -> Vec<String> {
        std::mem::take(&mut self.request_heads.lock().unwrap())
    }
}

async fn forward_connection(mut caller: TcpStream, provider: SocketAddr, heads: Arc<Mutex<Vec<String>>>) {
    let keep = |head: &[u8]| heads.lock().unwrap().push(String::from_utf8_lossy(head).into_owned());
    let Some(head) = read_request_head(&mut caller).await else { return };
    keep(&head);
    let mut onward = TcpStream::connect(provider).await.unwrap();
    if head.starts_with(b"CONNECT ") {
        caller.write_all(b"HTTP/1.1 200 Connection established\r\nvia: a proxy\r\n\r\n").await.unwrap();
    } else {
        onward.write_all(&head).await.unwrap();
    }
    let _ = copy_bidirectional(&mut caller, &mut onward).await;
}

/// Blocks DNS lookups until the sender is dropped.
struct LookupGate(Mutex<Receiver<()>>);

fn lookup_gate() -> (Sender<()>, LookupGate) {
    let (end, gate) = channel();
    (end, LookupGate(Mutex::new(gate)))
}

impl LookupGate {
    fn wait(&self) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// Resolver that knows the proxy and one host with a private address. Lookups of all other names fail, because only the
/// proxy may resolve them.
fn proxy_only_resolver() -> LookupFn {
    Arc::new(|name| match name {
        "proxy.internal" => Ok(vec![[127, 0, 0, 1].into()]),
        "inside.example" => Ok(vec![[93, 184, 216, 34].into(), [10, 0, 0, 5].into()]),
        other => Err(io::Error::other(format!("nobody should ask for {other}"))),
    })
}

fn gateway_with_proxy(proxy: &str, change: impl FnOnce(&mut Settings)) -> TestGateway {
    TestGateway::with_resolver(proxy_only_resolver(), |settings| {
        settings.https_proxy = Some(Secret::new(proxy));
        settings.http_proxy = Some(Secret::new(proxy));
        settings.tls_ca = Some(tls_file("authority.pem"));
        settings.trusted_custom_hosts = vec!["llm.example".into()];
        change(settings);
    })
}

fn request_to_url(url: &str) -> TestRequest {
    post_request(CHAT_PATH, chat_body("m", false))
        .header("x-gateway-custom-host", url)
        .header("authorization", "Bearer sk-1")
}

async fn start_provider() -> ScriptedServer {
    ScriptedServer::start_responding(json_response("200 OK", "", "{}")).await
}

const PROXY_AUTH_HEADER: &str = "proxy-authorization: Basic YWxpY2U6c2VzYW1l\r\n";

#[tokio::test]
async fn https_uses_a_tunnel() {
    let provider = ScriptedServer::start(|stream, _| async move {
        let mut stream = tls_acceptor(&[]).accept(stream).await.unwrap();
        while let Some(request) = read_request(&mut stream).await {
            assert!(!String::from_utf8_lossy(&request).contains("proxy-"));
            stream.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
        }
    })
    .await;
    let proxy = MockProxy::start(provider.addr).await;
    let gateway = gateway_with_proxy(&proxy.url(), |_| ());
    for _ in 0..3 {
        let response = gateway.send(request_to_url("https://llm.example/v1")).await;
        assert_eq!((response.status, response.text().as_str()), (200, "{}"));
    }
    let request = format!("CONNECT llm.example:443 HTTP/1.1\r\nhost: llm.example:443\r\n{PROXY_AUTH_HEADER}\r\n");
    assert_eq!(proxy.take_request_heads(), [request]);
}

#[tokio::test]
async fn http_sends_the_absolute_url_with_each_request() {
    let provider = start_provider().await;
    let proxy = MockProxy::start(provider.addr).await;
    let gateway = gateway_with_proxy(&proxy.url(), |_| ());
    assert_eq!(gateway.send(request_to_url("http://llm.example:8080/v1")).await.status, 200);
    let requests = proxy.take_request_heads().concat();
    let line = format!(
        "POST http://llm.example:8080/v1/chat/completions HTTP/1.1\r\n{PROXY_AUTH_HEADER}host: llm.example:8080\r\n"
    );
    assert!(requests.starts_with(&line) && requests.contains("\r\nauthorization: Bearer sk-1\r\n"), "{requests}");
    // The pooled connection also goes through the proxy. It is reused for the same origin, with the same absolute URL.
    assert_eq!(gateway.send(request_to_url("http://llm.example:8080/v1")).await.status, 200);
    assert_eq!(provider.connection_count(), 1);
}

#[tokio::test]
async fn no_proxy_hosts_are_reached_directly() {
    let provider = start_provider().await;
    let proxy = MockProxy::start(provider.addr).await;
    let gateway = gateway_with_proxy(&proxy.url(), |settings| {
        settings.no_proxy = vec!["other.example".into(), "127.0.0.0/8".into()];
        settings.trusted_custom_hosts = vec!["127.0.0.1".into(), "localhost".into()];
    });
    assert_eq!(gateway.send(request_to_url(&provider.url())).await.status, 200);
    assert!(
        gateway
            .send(request_to_url("http://other.example"))
            .await
            .text()
            .contains("nobody should ask for other.example")
    );
    assert!(proxy.take_request_heads().is_empty());
}

#[tokio::test]
async fn forbidden_hosts_are_rejected_behind_a_proxy() {
    let provider = start_provider().await;
    let proxy = MockProxy::start(provider.addr).await;
    let gateway = gateway_with_proxy(&proxy.url(), |_| ());
    for host in [
        "10.0.0.1",
        "169.254.169.254",
        "0x0a000001",
        "[fd00::1]",
        "metadata.google.internal",
        "x.lan",
        "a.nip.io",
        "inside.example",
    ] {
        for scheme in ["http", "https"] {
            let response = gateway.send(request_to_url(&format!("{scheme}://{host}"))).await;
            assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"), "{host}");
        }
    }
    assert!(proxy.take_request_heads().is_empty());
}

/// Only hosts that an operator or a provider chose may stay unresolved in the gateway.
#[tokio::test]
async fn client_chosen_host_is_resolved_and_checked_behind_a_proxy() {
    let provider = start_provider().await;
    let proxy = MockProxy::start(provider.addr).await;
    let requests = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&requests);
    let (end, gate) = lookup_gate();
    let slow: LookupFn = Arc::new(move |name| {
        if name == "proxy.internal" {
            return Ok(vec![[127, 0, 0, 1].into()]);
        }
        noted.lock().unwrap().push(name.to_owned());
        match name {
            "inside.example" => Ok(vec![[10, 0, 0, 5].into()]),
            "hanging.example" => {
                gate.wait();
                Ok(vec![[10, 0, 0, 5].into()])
            }
            "public.example" => Ok(vec![[93, 184, 216, 34].into()]),
            "failing.example" => Err(io::Error::other("nobody can be asked")),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    });
    let gateway = TestGateway::with_resolver(slow, |settings| {
        settings.http_proxy = Some(Secret::new(proxy.url()));
        settings.trusted_custom_hosts = vec!["known.example".into()];
        settings.dns_timeout_ms = 1_000;
    });
    for (host, status, code) in [
        ("public.example", 200, ""),
        ("inside.example", 400, "invalid_custom_host"),
        ("nowhere.example", 400, "invalid_custom_host"),
        ("failing.example", 502, "upstream_connect_failed"),
        ("hanging.example", 503, "upstream_connect_timeout"),
    ] {
        let response = gateway.send(request_to_url(&format!("http://{host}"))).await;
        assert_eq!(
            (response.status, if status == 200 { String::new() } else { response.error_code() }),
            (status, code.into()),
            "{host}"
        );
    }
    assert_eq!(requests.lock().unwrap().len(), 5);
    // The proxy resolves these names; the gateway does not look them up.
    for host in ["api.openai.com", "known.example", "below.known.example"] {
        assert_eq!(gateway.send(request_to_url(&format!("http://{host}"))).await.status, 200, "{host}");
    }
    assert_eq!(requests.lock().unwrap().len(), 5);
    let unasked = ["inside", "nowhere", "failing", "hanging"];
    assert!(!proxy.take_request_heads().iter().any(|head| unasked.iter().any(|name| head.contains(name))));
    drop(end);
}

/// Starts a proxy that refuses every tunnel and records the request heads.
async fn start_refusing_proxy() -> MockProxy {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&heads);
    let scripted = ScriptedServer::start(move |mut stream, _| {
        let shared = Arc::clone(&shared);
        async move {
            let Some(head) = read_request_head(&mut stream).await else { return };
            shared.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.unwrap();
        }
    })
    .await;
    MockProxy { server: scripted, request_heads: heads }
}

/// Hosts that provider options determine, each with a request that uses it.
fn option_derived_hosts() -> [(&'static str, TestRequest); 4] {
    let build_request = |provider: &str, options: &[(&str, &str)]| {
        let build_request =
            TestRequest::new("POST", CHAT_PATH).header("content-type", "application/json").body(chat_body("m", false));
        let build_request = build_request.header("x-gateway-provider", provider).header("authorization", "Bearer sk-1");
        options.iter().fold(build_request, |build_request, (name, value)| {
            build_request.header(&format!("x-gateway-{name}"), value)
        })
    };
    let azure = [("azure-resource-name", "my-res"), ("azure-deployment-id", "d"), ("azure-api-version", "2024-10-21")];
    let entra = [
        ("azure-auth-mode", "entra"),
        ("azure-entra-tenant-id", "t"),
        ("azure-entra-client-id", "c"),
        ("azure-entra-client-secret", "s"),
    ];
    let vertex = [("vertex-project-id", "p"), ("vertex-region", "us-east5")];
    [
        ("bedrock-runtime.eu-west-1.amazonaws.com", build_request("bedrock", &[("aws-region", "eu-west-1")])),
        ("my-res.openai.azure.com", build_request("azure-openai", &azure)),
        ("login.microsoftonline.com", build_request("azure-openai", &[&azure[..], &entra].concat())),
        ("us-east5-aiplatform.googleapis.com", build_request("vertex-ai", &vertex)),
    ]
}

#[tokio::test]
async fn unresolvable_provider_host_is_left_to_the_proxy() {
    for kind in [io::ErrorKind::NotFound, io::ErrorKind::Other] {
        let look_up: LookupFn = Arc::new(move |name| match name {
            "proxy.internal" => Ok(vec![[127, 0, 0, 1].into()]),
            _ => Err(kind.into()),
        });
        for (host, request) in option_derived_hosts() {
            let proxy = start_refusing_proxy().await;
            let gateway = TestGateway::with_resolver(Arc::clone(&look_up), |settings| {
                settings.https_proxy = Some(Secret::new(proxy.url()));
            });
            let response = gateway.send(request).await;
            let requests = proxy.take_request_heads();
            let is_tunnelled = requests.iter().any(|head| head.starts_with(&format!("CONNECT {host}:443 ")));
            assert!(is_tunnelled && response.status >= 500, "{host} {kind}: {} {requests:?}", response.text());
        }
    }
    // If the local network resolves the host to a private address, that address is checked like any other.
    let look_up: LookupFn = Arc::new(|name| match name {
        "proxy.internal" => Ok(vec![[127, 0, 0, 1].into()]),
        _ => Ok(vec![[10, 0, 0, 5].into()]),
    });
    let proxy = start_refusing_proxy().await;
    let gateway = TestGateway::with_resolver(look_up, |settings| settings.https_proxy = Some(Secret::new(proxy.url())));
    for (host, request) in option_derived_hosts() {
        assert!(gateway.send(request).await.status >= 400, "{host}");
    }
    assert!(proxy.take_request_heads().is_empty());
}

/// Number of requests; exceeds the limit of concurrent lookups for hosts that clients choose.
const HANGING_REQUESTS: usize = 80;

#[tokio::test]
async fn proxy_lookup_does_not_wait_for_client_chosen_hosts() {
    let provider = start_provider().await;
    let proxy = MockProxy::start(provider.addr).await;
    let (end, gate) = lookup_gate();
    let hanging = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hanging);
    let look_up: LookupFn = Arc::new(move |name| {
        if name.starts_with("hanging") {
            count.fetch_add(1, Ordering::Relaxed);
            gate.wait();
        }
        Ok(vec![[127, 0, 0, 1].into()])
    });
    let gateway = Arc::new(TestGateway::with_resolver(look_up, |settings| {
        settings.http_proxy = Some(Secret::new(proxy.url()));
        settings.trusted_custom_hosts = vec!["llm.example".into()];
    }));
    let request: Vec<_> = (0..HANGING_REQUESTS)
        .map(|number| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move {
                gateway.send(request_to_url(&format!("http://hanging-{number}.example"))).await.status
            })
        })
        .collect();
    // Lookups of hosts that clients choose may occupy half of the resolver threads.
    wait_until("all hang that may", || hanging.load(Ordering::Relaxed) == 64).await;
    assert_eq!(gateway.send(request_to_url("http://llm.example")).await.status, 200);
    drop(end);
    for request in request {
        assert_ne!(request.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn proxy_failure_is_reported_without_its_password() {
    for reply in
        ["HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nsurplus", "SSH-2.0-x\r\n\r\n"]
    {
        let proxy = ScriptedServer::start_responding(reply).await;
        let response = gateway_with_proxy(&format!("http://u:sesame@{}", proxy.addr), |_| ())
            .send(request_to_url("https://llm.example"))
            .await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (502, "upstream_connect_failed"),
            "{}",
            response.text()
        );
        assert!(response.text().contains("proxy") && !response.text().contains("sesame"), "{}", response.text());
    }
    let silent = ScriptedServer::start_responding("").await;
    let gateway =
        gateway_with_proxy(&format!("http://u:sesame@{}", silent.addr), |settings| settings.connect_timeout_ms = 100);
    let response = gateway.send(request_to_url("https://llm.example")).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "upstream_connect_timeout"),
        "{}",
        response.text()
    );
    assert!(!format!("{:?}", gateway.state.settings).contains("sesame"));
}

#[tokio::test]
async fn rejects_unsupported_proxy_scheme_at_startup() {
    let settings = Settings { https_proxy: Some(Secret::new("socks5://u:sesame@proxy:1080")), ..Settings::default() };
    let problems = penstock_core::gateway_state::GatewayState::new(settings).err().expect("a problem");
    assert_eq!(problems[0].path, "$.https_proxy");
    assert!(!problems[0].message.contains("sesame"), "{problems:?}");
}
