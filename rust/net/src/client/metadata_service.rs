//! Client of the machine's credential services (instance metadata, container credentials). Other requests of the
//! gateway cannot reach these services. This client connects only to IP addresses, never to names, and never through a
//! proxy.

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};

use super::message::{BodyFraming, BufferedResponse};
use super::{http1, response_body::ReadTimeout};
use crate::{
    body::Body,
    connect::connection::{Connection, Transport},
    error,
};

/// Timeout of a request. It is short, because these services are on the machine or its network link, if they exist at
/// all.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a response body.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Well-known addresses of these services at cloud providers.
const CLOUD_ADDRESSES: [&str; 5] =
    ["169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23"];

/// Address of a credential service, with the path from its configured URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataService {
    address: SocketAddr,
    authority: String,
    pub path: String,
}

impl MetadataService {
    /// Parses a URL from the operator. Its host must be loopback, link-local or one of `CLOUD_ADDRESSES`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or("must begin with http://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // Some container platforms put `localhost` into the URL. It is replaced, so that no name is resolved.
        let authority = &authority.replacen("localhost", "127.0.0.1", usize::from(is_localhost(authority)));
        let bare = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 80));
        let address = authority.parse().ok().or_else(|| bare(authority)).ok_or("must contain an IP address")?;
        let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
        let is_known = CLOUD_ADDRESSES
            .iter()
            .filter_map(|text| text.parse().ok())
            .any(|cloud_address: IpAddr| cloud_address == address.ip());
        let is_near = match address.ip() {
            IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        if !is_known && !is_near || !is_plain {
            return Err(format!("must be a loopback or link-local address, or one of {}", CLOUD_ADDRESSES.join(", ")));
        }
        let path = path.trim_end_matches('/').to_owned();
        Ok(Self { address, authority: authority.clone(), path })
    }

    /// Sends a request without a body. Returns the response, or a message that describes the failure.
    pub async fn send_request(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<BufferedResponse, String> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\naccept: */*\r\n", self.authority);
        for (name, value) in fields {
            if !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
                return Err(format!("the value of {name} is not allowed in a header"));
            }
            // Writing to a String cannot fail.
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let length = if method == "PUT" { "content-length: 0\r\n" } else { "" };
        let head = format!("{head}{length}\r\n");
        let failed = |cause: &dyn std::fmt::Display| format!("the request to {} failed: {cause}", self.authority);
        match timeout(REQUEST_TIMEOUT, self.connect_and_exchange(head.as_bytes())).await {
            Ok(Ok(response)) => response.ok_or_else(|| failed(&"its response is too large")),
            Ok(Err(cause)) => Err(failed(&cause)),
            Err(_) => Err(failed(&"it does not respond")),
        }
    }

    async fn connect_and_exchange(&self, head: &[u8]) -> Result<Option<BufferedResponse>, String> {
        let stream = TcpStream::connect(self.address).await.map_err(|error| error.to_string())?;
        self.exchange_over(stream, head).await.map_err(|error| error.to_string())
    }

    async fn exchange_over(&self, stream: TcpStream, head: &[u8]) -> error::Result<Option<BufferedResponse>> {
        let mut connection = Connection::new(Transport::Tcp(stream));
        let message_head = http1::exchange(&mut connection, head, Body::empty(), BodyFraming::default()).await?;
        let status = message_head.response.status;
        let max_wait = ReadTimeout::new(REQUEST_TIMEOUT, REQUEST_TIMEOUT);
        let mut body = http1::Http1BodyReader::new(connection, message_head.framing, None, max_wait).into();
        let bytes = super::incoming::collect(&mut body, MAX_RESPONSE_BYTES).await?;
        Ok(bytes.map(|body| BufferedResponse { status, body }))
    }
}

fn is_localhost(authority: &str) -> bool {
    authority.split(':').next() == Some("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_this_machine_and_cloud_addresses() {
        for (url, path) in [
            ("http://169.254.169.254", ""),
            ("http://169.254.170.2/v2/credentials/1", "/v2/credentials/1"),
            ("http://127.0.0.1:8080/creds/", "/creds"),
            ("http://[fd00:ec2::23]/v1/credentials", "/v1/credentials"),
            ("http://localhost:42356/msi/token", "/msi/token"),
            ("http://169.254.129.2:8081/msi/token", "/msi/token"),
        ] {
            assert_eq!(MetadataService::parse(url).unwrap().path, path, "{url}");
        }
        for url in [
            "https://169.254.169.254",
            "http://10.0.0.1",
            "http://metadata",
            "http://169.254.169.254.example",
            "http://localhost.example",
            "x",
        ] {
            assert!(MetadataService::parse(url).is_err(), "{url}");
        }
    }
}
