//! Through a proxy: a tunnel for https, the whole URL for http, its password for it alone, and no way around what is forbidden.

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
    Ask, CHAT, Rig, post,
    scripted::{Scripted, request, request_head, whole},
    tls::{acceptor, file},
    until, words,
};
use penstock_core::{
    process::{secret::Secret, settings::Settings},
    upstream::LookupFn,
};
use tokio::{
    io::{AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
};

/// A proxy that leads everything to one place, whatever it is asked for, and keeps what it was asked.
struct Proxy {
    scripted: Scripted,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn before(provider: SocketAddr) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heads);
        let scripted = Scripted::start(move |stream, _| pass(stream, provider, Arc::clone(&kept))).await;
        Self { scripted, heads }
    }

    /// With a password, under a name that only it can be looked up by.
    fn url(&self) -> String {
        format!("http://alice:sesame@proxy.internal:{}", self.scripted.addr.port())
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

async fn pass(mut caller: TcpStream, provider: SocketAddr, heads: Arc<Mutex<Vec<String>>>) {
    let keep = |head: &[u8]| heads.lock().unwrap().push(String::from_utf8_lossy(head).into_owned());
    let Some(head) = request_head(&mut caller).await else { return };
    keep(&head);
    let mut onward = TcpStream::connect(provider).await.unwrap();
    if head.starts_with(b"CONNECT ") {
        caller.write_all(b"HTTP/1.1 200 Connection established\r\nvia: a proxy\r\n\r\n").await.unwrap();
    } else {
        onward.write_all(&head).await.unwrap();
    }
    let _ = copy_bidirectional(&mut caller, &mut onward).await;
}

/// What look-ups wait for, until the other half is dropped.
struct Gate(Mutex<Receiver<()>>);

fn gate() -> (Sender<()>, Gate) {
    let (end, gate) = channel();
    (end, Gate(Mutex::new(gate)))
}

impl Gate {
    fn wait(&self) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// Knows the proxy and nobody else: what lies behind it is for the proxy to find.
fn only_the_proxy() -> LookupFn {
    Arc::new(|name| match name {
        "proxy.internal" => Ok(vec![[127, 0, 0, 1].into()]),
        "inside.example" => Ok(vec![[93, 184, 216, 34].into(), [10, 0, 0, 5].into()]),
        other => Err(io::Error::other(format!("nobody should ask for {other}"))),
    })
}

fn rig(proxy: &str, change: impl FnOnce(&mut Settings)) -> Rig {
    Rig::looking_up(only_the_proxy(), |settings| {
        settings.https_proxy = Some(Secret::new(proxy));
        settings.http_proxy = Some(Secret::new(proxy));
        settings.tls_ca = Some(file("authority.pem"));
        settings.trusted_custom_hosts = vec!["llm.example".into()];
        change(settings);
    })
}

fn to(url: &str) -> Ask {
    post(CHAT, words("m", false)).header("x-gateway-custom-host", url).header("authorization", "Bearer sk-1")
}

async fn provider() -> Scripted {
    Scripted::answering(whole("200 OK", "", "{}")).await
}

const CREDENTIALS: &str = "proxy-authorization: Basic YWxpY2U6c2VzYW1l\r\n";

#[tokio::test]
async fn https_goes_through_a_tunnel() {
    let provider = Scripted::start(|stream, _| async move {
        let mut stream = acceptor(&[]).accept(stream).await.unwrap();
        while let Some(asked) = request(&mut stream).await {
            assert!(!String::from_utf8_lossy(&asked).contains("proxy-"));
            stream.write_all(&whole("200 OK", "", "{}")).await.unwrap();
        }
    })
    .await;
    let proxy = Proxy::before(provider.addr).await;
    let rig = rig(&proxy.url(), |_| ());
    for _ in 0..3 {
        let told = rig.send(to("https://llm.example/v1")).await;
        assert_eq!((told.status, told.text().as_str()), (200, "{}"));
    }
    let asked = format!("CONNECT llm.example:443 HTTP/1.1\r\nhost: llm.example:443\r\n{CREDENTIALS}\r\n");
    assert_eq!(proxy.asked(), [asked]);
}

#[tokio::test]
async fn http_goes_with_its_whole_url_each_time() {
    let provider = provider().await;
    let proxy = Proxy::before(provider.addr).await;
    let rig = rig(&proxy.url(), |_| ());
    assert_eq!(rig.send(to("http://llm.example:8080/v1")).await.status, 200);
    let asked = proxy.asked().concat();
    let line =
        format!("POST http://llm.example:8080/v1/chat/completions HTTP/1.1\r\n{CREDENTIALS}host: llm.example:8080\r\n");
    assert!(asked.starts_with(&line) && asked.contains("\r\nauthorization: Bearer sk-1\r\n"), "{asked}");
    // The kept connection is the proxy's too: it is used again for the same origin, in the same form.
    assert_eq!(rig.send(to("http://llm.example:8080/v1")).await.status, 200);
    assert_eq!(provider.connections(), 1);
}

#[tokio::test]
async fn some_hosts_are_reached_without_it() {
    let provider = provider().await;
    let proxy = Proxy::before(provider.addr).await;
    let rig = rig(&proxy.url(), |settings| {
        settings.no_proxy = vec!["other.example".into(), "127.0.0.0/8".into()];
        settings.trusted_custom_hosts = vec!["127.0.0.1".into(), "localhost".into()];
    });
    assert_eq!(rig.send(to(&provider.url())).await.status, 200);
    assert!(rig.send(to("http://other.example")).await.text().contains("nobody should ask for other.example"));
    assert!(proxy.asked().is_empty());
}

#[tokio::test]
async fn a_proxy_is_no_way_around_what_is_forbidden() {
    let provider = provider().await;
    let proxy = Proxy::before(provider.addr).await;
    let rig = rig(&proxy.url(), |_| ());
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
            let told = rig.send(to(&format!("{scheme}://{host}"))).await;
            assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"), "{host}");
        }
    }
    assert!(proxy.asked().is_empty());
}

/// Only what an operator or a provider chose goes where nobody here knows.
#[tokio::test]
async fn behind_a_proxy_too_a_name_is_judged_by_where_it_leads() {
    let provider = provider().await;
    let proxy = Proxy::before(provider.addr).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let (end, gate) = gate();
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
    let rig = Rig::looking_up(slow, |settings| {
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
        let told = rig.send(to(&format!("http://{host}"))).await;
        assert_eq!(
            (told.status, if status == 200 { String::new() } else { told.code() }),
            (status, code.into()),
            "{host}"
        );
    }
    assert_eq!(asked.lock().unwrap().len(), 5);
    // These are for the proxy to find, and nobody asks for them here.
    for host in ["api.openai.com", "known.example", "below.known.example"] {
        assert_eq!(rig.send(to(&format!("http://{host}"))).await.status, 200, "{host}");
    }
    assert_eq!(asked.lock().unwrap().len(), 5);
    let unasked = ["inside", "nowhere", "failing", "hanging"];
    assert!(!proxy.asked().iter().any(|head| unasked.iter().any(|name| head.contains(name))));
    drop(end);
}

/// A proxy that leads nowhere, and whom it was asked for.
async fn refusing() -> Proxy {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let scripted = Scripted::start(move |mut stream, _| {
        let kept = Arc::clone(&kept);
        async move {
            let Some(head) = request_head(&mut stream).await else { return };
            kept.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await.unwrap();
        }
    })
    .await;
    Proxy { scripted, heads }
}

/// Of what options decide, one host each.
fn placed() -> [(&'static str, Ask); 4] {
    let ask = |provider: &str, options: &[(&str, &str)]| {
        let ask = Ask::new("POST", CHAT).header("content-type", "application/json").body(words("m", false));
        let ask = ask.header("x-gateway-provider", provider).header("authorization", "Bearer sk-1");
        options.iter().fold(ask, |ask, (name, value)| ask.header(&format!("x-gateway-{name}"), value))
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
        ("bedrock-runtime.eu-west-1.amazonaws.com", ask("bedrock", &[("aws-region", "eu-west-1")])),
        ("my-res.openai.azure.com", ask("azure-openai", &azure)),
        ("login.microsoftonline.com", ask("azure-openai", &[&azure[..], &entra].concat())),
        ("us-east5-aiplatform.googleapis.com", ask("vertex-ai", &vertex)),
    ]
}

#[tokio::test]
async fn behind_a_proxy_a_providers_host_is_reached_also_where_nobody_here_knows_it() {
    for kind in [io::ErrorKind::NotFound, io::ErrorKind::Other] {
        let look_up: LookupFn = Arc::new(move |name| match name {
            "proxy.internal" => Ok(vec![[127, 0, 0, 1].into()]),
            _ => Err(kind.into()),
        });
        for (host, ask) in placed() {
            let proxy = refusing().await;
            let rig = Rig::looking_up(Arc::clone(&look_up), |settings| {
                settings.https_proxy = Some(Secret::new(proxy.url()));
            });
            let told = rig.send(ask).await;
            let asked = proxy.asked();
            let is_asked = asked.iter().any(|head| head.starts_with(&format!("CONNECT {host}:443 ")));
            assert!(is_asked && told.status >= 500, "{host} {kind}: {} {asked:?}", told.text());
        }
    }
    // A private network's own address for it is judged like any other.
    let look_up: LookupFn = Arc::new(|name| match name {
        "proxy.internal" => Ok(vec![[127, 0, 0, 1].into()]),
        _ => Ok(vec![[10, 0, 0, 5].into()]),
    });
    let proxy = refusing().await;
    let rig = Rig::looking_up(look_up, |settings| settings.https_proxy = Some(Secret::new(proxy.url())));
    for (host, ask) in placed() {
        assert!(rig.send(ask).await.status >= 400, "{host}");
    }
    assert!(proxy.asked().is_empty());
}

/// More than there may be look-ups of names that callers choose.
const MANY: usize = 80;

#[tokio::test]
async fn the_proxys_own_name_waits_for_none_that_callers_choose() {
    let provider = provider().await;
    let proxy = Proxy::before(provider.addr).await;
    let (end, gate) = gate();
    let hanging = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hanging);
    let look_up: LookupFn = Arc::new(move |name| {
        if name.starts_with("hanging") {
            count.fetch_add(1, Ordering::Relaxed);
            gate.wait();
        }
        Ok(vec![[127, 0, 0, 1].into()])
    });
    let rig = Arc::new(Rig::looking_up(look_up, |settings| {
        settings.http_proxy = Some(Secret::new(proxy.url()));
        settings.trusted_custom_hosts = vec!["llm.example".into()];
    }));
    let asked: Vec<_> = (0..MANY)
        .map(|number| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.send(to(&format!("http://hanging-{number}.example"))).await.status })
        })
        .collect();
    // Half of the threads.
    until("all hang that may", || hanging.load(Ordering::Relaxed) == 64).await;
    assert_eq!(rig.send(to("http://llm.example")).await.status, 200);
    drop(end);
    for asked in asked {
        assert_ne!(asked.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_or_is_silent_is_told_without_its_password() {
    for answer in
        ["HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nsurplus", "SSH-2.0-x\r\n\r\n"]
    {
        let proxy = Scripted::answering(answer).await;
        let told = rig(&format!("http://u:sesame@{}", proxy.addr), |_| ()).send(to("https://llm.example")).await;
        assert_eq!((told.status, told.code().as_str()), (502, "upstream_connect_failed"), "{}", told.text());
        assert!(told.text().contains("proxy") && !told.text().contains("sesame"), "{}", told.text());
    }
    let silent = Scripted::answering("").await;
    let rig = rig(&format!("http://u:sesame@{}", silent.addr), |settings| settings.connect_timeout_ms = 100);
    let told = rig.send(to("https://llm.example")).await;
    assert_eq!((told.status, told.code().as_str()), (503, "upstream_connect_timeout"), "{}", told.text());
    assert!(!format!("{:?}", rig.gateway.settings).contains("sesame"));
}

#[tokio::test]
async fn a_proxy_that_is_none_is_told_at_the_start() {
    let settings = Settings { https_proxy: Some(Secret::new("socks5://u:sesame@proxy:1080")), ..Settings::default() };
    let problems = penstock_core::gateway::Gateway::new(settings).err().expect("a problem");
    assert_eq!(problems[0].path, "$.https_proxy");
    assert!(!problems[0].message.contains("sesame"), "{problems:?}");
}
