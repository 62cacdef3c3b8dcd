//! Name resolution and dialling of upstreams. A name is resolved once, only the checked addresses are dialled, every
//! step has a timeout, and redirects are not followed.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_request, post_request,
    scripted::{ScriptedServer, accepts_connection_within, json_response, read_request},
};
use penstock_core::upstream::LookupFn;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

const FIRST_LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SECOND_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a resolver that gives these results in order and then repeats the last one, and its call counter.
fn scripted_resolver(answers: &[&[IpAddr]]) -> (LookupFn, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let answers: Vec<_> = answers.iter().map(|addresses| addresses.to_vec()).collect();
    let look_up = move |_: &str| -> io::Result<Vec<IpAddr>> {
        let turn = count.fetch_add(1, Ordering::Relaxed);
        Ok(answers[turn.min(answers.len() - 1)].clone())
    };
    (Arc::new(look_up), asked)
}

fn request_to_host(url: &str) -> TestRequest {
    post_request(CHAT_PATH, chat_body("m", false)).header("x-gateway-custom-host", url)
}

#[tokio::test]
async fn dials_the_address_that_was_checked() {
    let provider =
        ScriptedServer::start_closing_after_response(json_response("200 OK", "connection: close\r\n", "{}")).await;
    let port = provider.addr.port();
    let other = TcpListener::bind((SECOND_LOOPBACK, port)).await.unwrap();
    // A second lookup before dialling would return the other address.
    let (look_up, asked) = scripted_resolver(&[&[FIRST_LOOPBACK.into()], &[SECOND_LOOPBACK.into()]]);
    let rig =
        TestGateway::with_resolver(look_up, |settings| settings.trusted_custom_hosts = vec!["llm.example".into()]);
    let told = rig.send(request_to_host(&format!("http://api.llm.example:{port}"))).await;
    assert_eq!((told.status, told.text().as_str()), (200, "{}"));
    assert_eq!((asked.load(Ordering::Relaxed), provider.connection_count()), (1, 1));
    assert!(!accepts_connection_within(&other, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn rejects_name_with_one_forbidden_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let public: IpAddr = "1.1.1.1".parse().unwrap();
    for second in ["127.0.0.1", "10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00::1", "0.0.0.0"] {
        let second = second.parse().unwrap();
        for addresses in [[public, second], [second, public]] {
            let (look_up, asked) = scripted_resolver(&[&addresses]);
            let rig = TestGateway::with_resolver(look_up, |_| ());
            let told = rig.send(request_to_host(&format!("http://rebind.example:{port}"))).await;
            assert_eq!((told.status, told.error_code().as_str()), (400, "invalid_custom_host"), "{}", told.text());
            assert_eq!(asked.load(Ordering::Relaxed), 1);
        }
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn rejects_trusted_name_that_resolves_to_metadata_service() {
    for address in ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "2002:a9fe:a9fe::"] {
        let (look_up, _) = scripted_resolver(&[&[address.parse().unwrap()]]);
        let rig =
            TestGateway::with_resolver(look_up, |settings| settings.trusted_custom_hosts = vec!["llm.example".into()]);
        let told = rig.send(request_to_host("http://llm.example")).await;
        assert_eq!((told.status, told.error_code().as_str()), (400, "invalid_custom_host"));
        assert!(told.text().contains("metadata"), "{}", told.text());
    }
}

#[tokio::test]
async fn does_not_resolve_addresses_or_forbidden_names() {
    let (look_up, asked) = scripted_resolver(&[&[FIRST_LOOPBACK.into()]]);
    let rig = TestGateway::with_resolver(look_up, |_| ());
    for host in ["127.0.0.1", "2130706433", "[::1]", "localhost", "a.internal", "kubernetes.default", "1.1.1.1.nip.io"]
    {
        assert_eq!(rig.send(request_to_host(&format!("http://{host}"))).await.status, 400, "{host}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn tries_next_address_if_one_does_not_respond() {
    let provider = ScriptedServer::start_responding(json_response("200 OK", "", "{}")).await;
    let (dead, _held) = unresponsive_address(provider.addr.port()).await;
    let (look_up, _) = scripted_resolver(&[&[dead.ip(), provider.addr.ip()]]);
    let rig =
        TestGateway::with_resolver(look_up, |settings| settings.trusted_custom_hosts = vec!["llm.example".into()]);
    let began = Instant::now();
    assert_eq!(rig.send(request_to_host(&format!("http://llm.example:{}", dead.port()))).await.status, 200);
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
}

/// Address that neither accepts nor refuses connections, because its backlog is full.
async fn unresponsive_address(port: u16) -> (SocketAddr, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((SECOND_LOOPBACK, port).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        held.push(stream);
    }
    // Keeps listening as long as the process lives.
    std::mem::forget(listener);
    (address, held)
}

async fn assert_connect_timeout(rig: &TestGateway, url: &str, step: &str) {
    let began = Instant::now();
    let told = rig.send(request_to_host(url)).await;
    assert_eq!((told.status, told.error_code().as_str()), (503, "upstream_connect_timeout"), "{}", told.text());
    assert!(told.text().contains(step), "{}", told.text());
    assert!(began.elapsed() >= Duration::from_millis(80), "{step}: {:?}", began.elapsed());
}

#[tokio::test]
async fn slow_name_lookup_times_out_and_blocks_no_other_name() {
    let (_open, closed) = mpsc::channel::<()>();
    let closed = Mutex::new(closed);
    let provider = ScriptedServer::start_responding(json_response("200 OK", "", "{}")).await;
    let look_up = Arc::new(move |name: &str| {
        if name == "slow.example" {
            // Blocks until the test ends.
            let _ = closed.lock().unwrap().recv();
        }
        Ok(vec![FIRST_LOOPBACK.into()])
    });
    let rig = TestGateway::with_resolver(look_up, |settings| {
        settings.dns_timeout_ms = 100;
        settings.trusted_custom_hosts = vec!["example".into()];
    });
    let url = |name| format!("http://{name}.example:{}", provider.addr.port());
    assert_connect_timeout(&rig, &url("slow"), "name look-up").await;
    assert_eq!(rig.send(request_to_host(&url("quick"))).await.status, 200);
}

#[tokio::test]
async fn reports_connect_timeout() {
    let (dead, _held) = unresponsive_address(0).await;
    let rig = TestGateway::with_settings("", |settings| {
        settings.connect_timeout_ms = 100;
        settings.trusted_custom_hosts = vec!["127.0.0.2".into()];
    });
    assert_connect_timeout(&rig, &format!("http://{dead}"), "connection").await;
}

#[tokio::test]
async fn reports_tls_handshake_timeout() {
    let silent = ScriptedServer::start(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let rig = TestGateway::with_settings("", |settings| {
        settings.tls_timeout_ms = 100;
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    assert_connect_timeout(&rig, &format!("https://{}", silent.addr), "TLS handshake").await;
}

#[tokio::test]
async fn returns_redirects_without_following_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}/v1/x", listener.local_addr().unwrap());
    for status in
        ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let answer = json_response(status, &format!("location: {elsewhere}\r\n"), "{}");
        let provider = ScriptedServer::start(move |mut stream, _| {
            let answer = answer.clone();
            async move {
                while read_request(&mut stream).await.is_some() {
                    stream.write_all(&answer).await.unwrap();
                }
            }
        })
        .await;
        let told = TestGateway::for_url(&provider.url()).send(chat_request("m")).await;
        assert_eq!((told.status.to_string().as_str(), told.header("location")), (&status[..3], Some(&*elsewhere)));
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(50)).await);
}
