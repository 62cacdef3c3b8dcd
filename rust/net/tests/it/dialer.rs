//! Name resolution and dialling. A name is resolved once, only the checked addresses are dialled, and every step has a
//! timeout.

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
    TestRequest, client_with_resolver,
    scripted::{ScriptedServer, accepts_connection_within, json_response},
    send, test_settings,
};
use penstock_net::{Error, LookupFn, Settings, Upstream};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

const FIRST_LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SECOND_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a resolver and the counter of its calls. The resolver returns these results in order, then repeats the last
/// one.
fn scripted_resolver(results: &[&[IpAddr]]) -> (LookupFn, Arc<AtomicUsize>) {
    let lookups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lookups);
    let results: Vec<_> = results.iter().map(|addresses| addresses.to_vec()).collect();
    let look_up = move |_: &str| -> io::Result<Vec<IpAddr>> {
        let turn = count.fetch_add(1, Ordering::Relaxed);
        Ok(results[turn.min(results.len() - 1)].clone())
    };
    (Arc::new(look_up), lookups)
}

/// Sends a request that must be rejected because of its host. Returns the message.
async fn expect_host_error(client: &Upstream, url: &str) -> String {
    match send(client, url, TestRequest::post()).await {
        Err(Error::HostNotAllowed { message }) => message,
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn dials_the_address_that_was_checked() {
    let server =
        ScriptedServer::start_closing_after_response(json_response("200 OK", "connection: close\r\n", "{}")).await;
    let port = server.addr.port();
    let other = TcpListener::bind((SECOND_LOOPBACK, port)).await.unwrap();
    // A second lookup before dialling would return the other address.
    let (look_up, lookups) = scripted_resolver(&[&[FIRST_LOOPBACK.into()], &[SECOND_LOOPBACK.into()]]);
    let client = client_with_resolver(look_up, &test_settings());
    let response = send(&client, &format!("http://api.llm.example:{port}"), TestRequest::post()).await.unwrap();
    assert_eq!((response.status, response.text()), (200, "{}"));
    assert_eq!((lookups.load(Ordering::Relaxed), server.connection_count()), (1, 1));
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
            let (look_up, lookups) = scripted_resolver(&[&addresses]);
            let client = client_with_resolver(look_up, &test_settings());
            expect_host_error(&client, &format!("http://rebind.example:{port}")).await;
            assert_eq!(lookups.load(Ordering::Relaxed), 1);
        }
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn rejects_trusted_name_that_resolves_to_metadata_service() {
    for address in ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "2002:a9fe:a9fe::"] {
        let (look_up, _) = scripted_resolver(&[&[address.parse().unwrap()]]);
        let client = client_with_resolver(look_up, &test_settings());
        let message = expect_host_error(&client, "http://llm.example").await;
        assert!(message.contains("metadata"), "{message}");
    }
}

#[tokio::test]
async fn mock_host_is_exempt_from_the_checks_but_only_its_port() {
    let server = ScriptedServer::start_responding(json_response("200 OK", "", "{}")).await;
    let settings = Settings { trusted_hosts: Vec::new(), mock_host: Some(server.url()), ..Settings::default() };
    let client = Upstream::new(&settings).unwrap();
    assert_eq!(send(&client, &server.url(), TestRequest::get()).await.unwrap().status, 200);
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    expect_host_error(&client, &format!("http://{}", other.local_addr().unwrap())).await;
    assert!(!accepts_connection_within(&other, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn tries_next_address_if_one_does_not_respond() {
    let server = ScriptedServer::start_responding(json_response("200 OK", "", "{}")).await;
    let (dead, _held) = unresponsive_address(server.addr.port()).await;
    let (look_up, _) = scripted_resolver(&[&[dead.ip(), server.addr.ip()]]);
    let client = client_with_resolver(look_up, &test_settings());
    let began = Instant::now();
    let url = format!("http://llm.example:{}", dead.port());
    assert_eq!(send(&client, &url, TestRequest::get()).await.unwrap().status, 200);
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
}

/// Address that neither accepts nor refuses connections, because its backlog is full.
async fn unresponsive_address(port: u16) -> (SocketAddr, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((SECOND_LOOPBACK, port).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut connections = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        connections.push(stream);
    }
    // Keeps listening as long as the process lives.
    std::mem::forget(listener);
    (address, connections)
}

async fn assert_connect_timeout(client: &Upstream, url: &str, expected: &str) {
    let began = Instant::now();
    match send(client, url, TestRequest::post()).await {
        Err(Error::ConnectTimeout { step, .. }) => assert_eq!(step, expected),
        other => panic!("{url}: {other:?}"),
    }
    assert!(began.elapsed() >= Duration::from_millis(80), "{expected}: {:?}", began.elapsed());
}

#[tokio::test]
async fn slow_name_lookup_times_out_and_blocks_no_other_name() {
    let (_open, closed) = mpsc::channel::<()>();
    let closed = Mutex::new(closed);
    let server = ScriptedServer::start_responding(json_response("200 OK", "", "{}")).await;
    let look_up = Arc::new(move |name: &str| {
        if name == "slow.llm.example" {
            // Blocks until the test ends.
            let _ = closed.lock().unwrap().recv();
        }
        Ok(vec![FIRST_LOOPBACK.into()])
    });
    let settings = Settings { dns_timeout: Duration::from_millis(100), ..test_settings() };
    let client = client_with_resolver(look_up, &settings);
    let url = |name| format!("http://{name}.llm.example:{}", server.addr.port());
    assert_connect_timeout(&client, &url("slow"), "name look-up").await;
    assert_eq!(send(&client, &url("quick"), TestRequest::get()).await.unwrap().status, 200);
}

#[tokio::test]
async fn reports_connect_timeout() {
    let (dead, _held) = unresponsive_address(0).await;
    let settings = Settings { connect_timeout: Duration::from_millis(100), ..test_settings() };
    assert_connect_timeout(&Upstream::new(&settings).unwrap(), &format!("http://{dead}"), "connection").await;
}

#[tokio::test]
async fn reports_tls_handshake_timeout() {
    let silent = ScriptedServer::start(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let settings = Settings { tls_timeout: Duration::from_millis(100), ..test_settings() };
    assert_connect_timeout(&Upstream::new(&settings).unwrap(), &format!("https://{}", silent.addr), "TLS handshake")
        .await;
}
