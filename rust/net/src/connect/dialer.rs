//! Opens all outgoing connections. Checks the host, resolves its name once, and dials exactly the checked addresses, so
//! that DNS rebinding has no effect.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::origin::BaseUrl;
use super::origin::Origin;
use super::{
    address::{HostKind, TrustedHosts},
    connection::{Connection, Transport},
    proxy::{Proxies, Proxy},
    resolver::{LookupFn, NameTrust, Resolver},
    tls,
};
use crate::{
    error::{Error, Result, SettingError},
    settings::{KnownHosts, Settings},
};

/// Delay before the next address is tried in parallel (RFC 8305 §5).
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Maximum number of addresses that are tried for one name.
const MAX_ATTEMPTS: usize = 16;
const UNRESOLVABLE_HOST: &str = "its name cannot be resolved here, so its address cannot be checked; list it in TRUSTED_CUSTOM_HOSTS if the proxy can resolve it";
/// Domains under which cloud providers assign names to customers. Their DNS is operated by the cloud.
const CLOUD_DOMAINS: &[&str] = &["azure.com", "amazonaws.com", "amazonaws.com.cn", "api.aws", "googleapis.com"];
/// Maximum size of the head of a proxy's response.
const MAX_PROXY_HEAD_BYTES: usize = 16 * 1024;

/// A new connection, by its negotiated protocol.
pub enum NewConnection {
    Http1(Connection),
    Http2(Box<TlsStream<TcpStream>>),
}

/// Timeouts for the steps of connecting.
struct ConnectTimeouts {
    dns: Duration,
    connect: Duration,
    tls: Duration,
}

/// Opens connections to hosts that [`TrustedHosts`] allows.
pub struct Dialer {
    trusted_hosts: TrustedHosts,
    known_hosts: KnownHosts,
    resolver: Resolver,
    timeouts: ConnectTimeouts,
    /// Address of the mock provider, which may be private. Other ports of its host get no exception.
    mock_origin: Option<Origin>,
    proxies: Proxies,
    is_http2_enabled: bool,
    ca_file: Option<std::path::PathBuf>,
    // TLS configuration, created for the first TLS connection: reading the system's certificates takes milliseconds.
    tls_config: OnceLock<Arc<ClientConfig>>,
    /// TLS configuration for connections that use only HTTP/1.1.
    http1_tls_config: OnceLock<Arc<ClientConfig>>,
}

impl Dialer {
    pub fn new(settings: &Settings, look_up: LookupFn) -> Result<Self, SettingError> {
        let mock = settings.mock_host.as_deref().map(BaseUrl::parse).transpose();
        let mock = mock.map_err(|message| SettingError::new("mock_host", message))?.map(|base| base.origin);
        let tls = OnceLock::new();
        if settings.tls_ca.is_some() {
            // Loads the operator's CA file at startup, so that a mistake is found before the first request.
            drop(tls.set(tls::client_config(settings.tls_ca.as_deref(), settings.http2)?));
        }
        let limits =
            ConnectTimeouts { dns: settings.dns_timeout, connect: settings.connect_timeout, tls: settings.tls_timeout };
        Ok(Self {
            known_hosts: settings.known_hosts,
            trusted_hosts: TrustedHosts::new(&settings.trusted_hosts),
            resolver: Resolver::new(look_up),
            timeouts: limits,
            mock_origin: mock,
            proxies: Proxies::new(settings)?,
            is_http2_enabled: settings.http2,
            ca_file: settings.tls_ca.clone(),
            tls_config: tls,
            http1_tls_config: OnceLock::new(),
        })
    }

    pub async fn connect(&self, origin: &Origin) -> Result<NewConnection> {
        match origin {
            Origin::Unix(path) => {
                let connected = timeout(self.timeouts.connect, UnixStream::connect(path.as_path())).await;
                let stream = connected.map_err(|_| Error::SocketUnavailable)?.map_err(|_| Error::SocketUnavailable)?;
                Ok(NewConnection::Http1(Connection::new(Transport::Unix(stream))))
            }
            Origin::Network { is_secure: secure, host, port } => {
                let stream = self.connect_tcp(origin, *secure, host, *port).await?;
                if !secure {
                    return Ok(NewConnection::Http1(Connection::new(Transport::Tcp(stream))));
                }
                let stream = Box::new(self.start_tls(origin, host, stream, self.tls_client_config(origin)?).await?);
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(tls::ALPN_HTTP2);
                Ok(if is_http2 {
                    NewConnection::Http2(stream)
                } else {
                    NewConnection::Http1(Connection::new(Transport::Tls(stream)))
                })
            }
        }
    }

    /// Resolves the host of an origin. Fails if the host has no address, or one that may not be dialled.
    pub async fn check_origin(&self, origin: &Origin) -> Result<()> {
        let Origin::Network { host, .. } = origin else {
            return Err(Error::HostNotAllowed { message: "only network hosts can be called".into() });
        };
        self.trusted_hosts.check_host(host).map_err(|reason| host_refused_error(host, reason))?;
        let addresses = self.resolve_host(origin, host, self.name_trust(host)).await?;
        let judge = |address: &IpAddr| self.trusted_hosts.check_address(host, *address);
        addresses.iter().try_for_each(judge).map_err(|reason| host_refused_error(host, reason))
    }

    /// Returns the proxy of an origin without TLS, which needs request heads in absolute form. `None` for TLS origins,
    /// because their requests go through a tunnel.
    pub fn forward_proxy(&self, origin: &Origin) -> Option<&Proxy> {
        let is_plain = matches!(origin, Origin::Network { is_secure: false, .. });
        if is_plain { self.proxies.select(origin) } else { None }
    }

    async fn connect_tcp(&self, origin: &Origin, secure: bool, host: &str, port: u16) -> Result<TcpStream> {
        let is_mock = self.mock_origin.as_ref() == Some(origin);
        if !is_mock {
            self.trusted_hosts.check_host(host).map_err(|reason| host_refused_error(host, reason))?;
        }
        let Some(proxy) = self.proxies.select(origin) else {
            let addresses = self.resolve_host(origin, host, self.name_trust(host)).await?;
            let judge = |address: &IpAddr| self.trusted_hosts.check_address(host, *address);
            if !is_mock {
                addresses.iter().try_for_each(judge).map_err(|reason| host_refused_error(host, reason))?;
            }
            return self.connect_any(origin, &addresses, port).await;
        };
        // The operator chose the proxy's address, so it is not checked. The proxy resolves the destination itself, so
        // its address cannot be pinned. The name is resolved here only to check its addresses.
        let judged = async { if is_mock { Ok(()) } else { self.check_proxied_host(origin, host).await } };
        let reached = async {
            let addresses = self.resolve_host(origin, &proxy.host, NameTrust::Trusted).await?;
            self.connect_any(origin, &addresses, proxy.port).await
        };
        let ((), mut stream) = tokio::try_join!(judged, reached)?;
        if secure {
            let tunnelled = open_tunnel(&mut stream, proxy.connect_request(host, port));
            run_step(origin, "proxy", self.timeouts.connect, tunnelled).await?;
        }
        Ok(stream)
    }

    /// Checks a host that is reached through a proxy. Hosts of providers and trusted hosts are exempt: a client cannot
    /// choose their addresses, and only the proxy may be able to resolve them.
    async fn check_proxied_host(&self, origin: &Origin, host: &str) -> Result<()> {
        if (self.known_hosts.is_provider)(host) || self.trusted_hosts.contains_name(host) {
            return Ok(());
        }
        let lookup_result = match self.lookup_host(origin, host, self.name_trust(host)).await {
            // A private network may resolve the names of a cloud to its own addresses, which are then checked. Names
            // that do not resolve here belong to the provider's cloud.
            Ok(Err(_)) | Err(Error::ConnectTimeout { .. }) if (self.known_hosts.is_cloud)(host) => return Ok(()),
            result => result?,
        };
        let addresses = lookup_result.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => host_refused_error(host, UNRESOLVABLE_HOST),
            _ => connect_failed_error(origin, &error),
        })?;
        let judge = |address: &IpAddr| self.trusted_hosts.check_address(host, *address);
        addresses.iter().try_for_each(judge).map_err(|reason| host_refused_error(host, reason))
    }

    async fn resolve_host(&self, origin: &Origin, host: &str, trust: NameTrust) -> Result<Arc<[IpAddr]>> {
        self.lookup_host(origin, host, trust).await?.map_err(|error| connect_failed_error(origin, &error))
    }

    /// Resolves a host within the DNS timeout. The outer error is a timeout or a rejected host; the inner result comes
    /// from the resolver.
    async fn lookup_host(&self, origin: &Origin, host: &str, trust: NameTrust) -> Result<io::Result<Arc<[IpAddr]>>> {
        let kind = HostKind::classify(host).map_err(|reason| host_refused_error(host, reason))?;
        if let Some(address) = kind.address() {
            return Ok(Ok(Arc::from([address])));
        }
        let lookup = async { Ok(self.resolver.resolve(host, trust).await) };
        run_step(origin, "name look-up", self.timeouts.dns, lookup).await
    }

    /// Returns true if the operator listed this host, by name or address.
    pub fn is_trusted(&self, host: &str) -> bool {
        self.trusted_hosts.contains_host(host)
    }

    /// Returns whether a name is trusted. A client may have chosen an untrusted name, which can be slow on purpose.
    fn name_trust(&self, host: &str) -> NameTrust {
        let is_below = |domain: &&str| host.strip_suffix(*domain).is_some_and(|name| name.ends_with('.'));
        let is_clouds = || (self.known_hosts.is_cloud)(host) || CLOUD_DOMAINS.iter().any(is_below);
        if (self.known_hosts.is_provider)(host) || self.trusted_hosts.contains_name(host) || is_clouds() {
            NameTrust::Trusted
        } else {
            NameTrust::Untrusted
        }
    }

    async fn connect_any(&self, origin: &Origin, addresses: &[IpAddr], port: u16) -> Result<TcpStream> {
        let addresses = interleave_families(addresses).map(|address| SocketAddr::new(address, port)).collect();
        let stream = run_step(origin, "connection", self.timeouts.connect, connect_first(addresses)).await?;
        stream.set_nodelay(true).map_err(|error| connect_failed_error(origin, &error))?;
        Ok(stream)
    }

    /// Opens an unpooled connection that uses HTTP/1.1, whatever else the provider offers.
    pub async fn connect_http1(&self, origin: &Origin) -> Result<Connection> {
        let Origin::Network { is_secure: secure, host, port } = origin else {
            return Err(Error::HostNotAllowed { message: "only network hosts can be called".into() });
        };
        let stream = self.connect_tcp(origin, *secure, host, *port).await?;
        if !secure {
            return Ok(Connection::new(Transport::Tcp(stream)));
        }
        let client = if let Some(client) = self.http1_tls_config.get() {
            Arc::clone(client)
        } else {
            let mut client = (*self.tls_client_config(origin)?).clone();
            client.alpn_protocols.clear();
            Arc::clone(self.http1_tls_config.get_or_init(|| Arc::new(client)))
        };
        Ok(Connection::new(Transport::Tls(Box::new(self.start_tls(origin, host, stream, client).await?))))
    }

    fn tls_client_config(&self, origin: &Origin) -> Result<Arc<ClientConfig>> {
        if let Some(client) = self.tls_config.get() {
            return Ok(Arc::clone(client));
        }
        let client = tls::client_config(self.ca_file.as_deref(), self.is_http2_enabled)
            .map_err(|error| connect_failed_error(origin, &io::Error::other(error.message)))?;
        Ok(Arc::clone(self.tls_config.get_or_init(|| client)))
    }

    async fn start_tls(
        &self,
        origin: &Origin,
        host: &str,
        stream: TcpStream,
        client: Arc<ClientConfig>,
    ) -> Result<TlsStream<TcpStream>> {
        let name = host.trim_matches(['[', ']']).to_owned();
        let name =
            ServerName::try_from(name).map_err(|error| connect_failed_error(origin, &io::Error::other(error)))?;
        run_step(origin, "TLS handshake", self.timeouts.tls, TlsConnector::from(client).connect(name, stream)).await
    }
}

/// Runs one step of connecting within its timeout.
async fn run_step<T>(
    origin: &Origin,
    step: &'static str,
    limit: Duration,
    future: impl Future<Output = io::Result<T>>,
) -> Result<T> {
    match timeout(limit, future).await {
        Ok(done) => done.map_err(|error| connect_failed_error(origin, &error)),
        Err(_) => Err(Error::ConnectTimeout { host: origin.authority(), step }),
    }
}

/// Requests a tunnel from a proxy. The provider sends nothing before the TLS handshake, so no byte may follow the
/// proxy's response.
async fn open_tunnel(stream: &mut TcpStream, request: Vec<u8>) -> io::Result<()> {
    stream.write_all(&request).await?;
    let mut response = Vec::with_capacity(1024);
    while !response.ends_with(b"\r\n\r\n") {
        let is_too_long =
            response.len() > MAX_PROXY_HEAD_BYTES || memchr::memmem::find(&response, b"\r\n\r\n").is_some();
        if is_too_long || stream.read_buf(&mut response).await? == 0 {
            return Err(io::Error::other("the proxy's response to CONNECT is invalid"));
        }
    }
    match response.get(..12) {
        Some([b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'2', _, _]) => Ok(()),
        line => {
            let status = line.map(|line| String::from_utf8_lossy(&line[9..]).into_owned()).unwrap_or_default();
            Err(io::Error::other(format!("the proxy refused with status {status}")))
        }
    }
}

fn host_refused_error(host: &str, reason: &str) -> Error {
    Error::HostNotAllowed { message: format!("`{host}` may not be called: {reason}") }
}

fn connect_failed_error(origin: &Origin, error: &io::Error) -> Error {
    Error::ConnectFailed { host: origin.authority(), cause: error.to_string() }
}

/// Alternates IPv6 and IPv4 addresses, beginning with the family that the resolver prefers. If one family is
/// unreachable, the other is tried next.
fn interleave_families(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let first_is_v6 = addresses.first().is_some_and(IpAddr::is_ipv6);
    let family = move |is_v6: bool| addresses.iter().copied().filter(move |address| address.is_ipv6() == is_v6);
    let (mut first, mut second) = (family(first_is_v6), family(!first_is_v6));
    let by_turns = std::iter::from_fn(move || match (first.next(), second.next()) {
        (None, None) => None,
        pair => Some(pair),
    });
    by_turns.flat_map(|(first, other)| first.into_iter().chain(other)).take(MAX_ATTEMPTS)
}

/// Returns the first connection that succeeds. The next address is tried when one fails or does not respond within
/// `CONNECTION_ATTEMPT_DELAY`.
async fn connect_first(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    if let [only] = addresses[..] {
        return TcpStream::connect(only).await;
    }
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    loop {
        match waiting.next() {
            Some(address) => drop(attempts.spawn(TcpStream::connect(address))),
            None if attempts.is_empty() => return Err(last),
            None => (),
        }
        let done = tokio::select! {
            biased;
            done = attempts.join_next() => done,
            () = sleep(CONNECTION_ATTEMPT_DELAY), if waiting.len() > 0 => None,
        };
        match done.transpose().map_err(io::Error::other)? {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => last = error,
            None => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, time::Instant};

    use super::*;

    #[test]
    fn interleaves_address_families() {
        let parse_all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let turns = |texts: &[&str]| {
            interleave_families(&parse_all(texts)).map(|address| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(turns(&["::1", "::2", "::3", "1.1.1.1"]), ["::1", "1.1.1.1", "::2", "::3"]);
        assert_eq!(turns(&["1.1.1.1", "::1", "2.2.2.2"]), ["1.1.1.1", "::1", "2.2.2.2"]);
        assert_eq!(turns(&["1.1.1.1"; 99]).len(), MAX_ATTEMPTS);
    }

    #[tokio::test(start_paused = true)]
    async fn skips_a_refused_address_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reachable = listener.local_addr().unwrap();
        let refused = TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap();
        // The paused clock stops while a blocking task runs, so a connection without timers takes no time.
        let (_running, ended) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || ended.recv_timeout(Duration::from_secs(10)));
        let started_at = Instant::now();
        assert_eq!(connect_first(vec![refused, reachable]).await.unwrap().peer_addr().unwrap(), reachable);
        assert_eq!(started_at.elapsed(), Duration::ZERO);
        assert!(connect_first(vec![refused, refused]).await.is_err());
        assert!(connect_first(Vec::new()).await.is_err());
    }

    #[tokio::test]
    async fn unresponsive_address_does_not_delay_the_next() {
        // The listen queue has one place, which is taken: further connections get no response.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let dead = full.local_addr().unwrap();
        let mut connections = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(100), TcpStream::connect(dead)).await {
            connections.push(stream);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reachable = listener.local_addr().unwrap();
        let started_at = Instant::now();
        assert_eq!(connect_first(vec![dead, reachable]).await.unwrap().peer_addr().unwrap(), reachable);
        // If only one address were tried, the wait for the first address would last minutes.
        assert!(started_at.elapsed() >= CONNECTION_ATTEMPT_DELAY, "{:?}", started_at.elapsed());
    }
}
