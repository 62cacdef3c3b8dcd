//! Whether the caller of a body that cannot be read is still there. The server does not tell one who left from one who sends nonsense.

use std::net::{IpAddr, SocketAddr};

use penstock_core::process::edge::sock_diag;
use pyo3::{intern, prelude::*, types::PyDict};

/// Both ends of a connection of HTTP/1.
#[derive(Clone, Copy)]
pub struct ConnectionAddresses {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// Whether the connection of a request is open in both directions. Where that cannot be known it is not.
pub fn is_connected(scope: &Bound<'_, PyDict>) -> bool {
    connection_addresses(scope).is_some_and(|ConnectionAddresses { local, remote }| {
        sock_diag::is_connection_open(local, remote).unwrap_or_default()
    })
}

/// Where a request's caller is, and whether it speaks HTTP/2.
pub fn client_address(scope: &Bound<'_, PyDict>) -> Option<(SocketAddr, bool)> {
    let py = scope.py();
    let value = |name| scope.get_item(name).ok().flatten();
    let is_http2 = value(intern!(py, "http_version"))?.extract::<String>().ok()?.starts_with('2');
    Some((parse_address(&value(intern!(py, "client"))?)?, is_http2))
}

/// One end of a connection, as the server gives it.
pub fn parse_address(end: &Bound<'_, PyAny>) -> Option<SocketAddr> {
    let (ip, port): (String, String) = end.extract().ok()?;
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?.to_canonical(), port.parse().ok()?))
}

/// Where a request's connection is.
pub fn connection_addresses(scope: &Bound<'_, PyDict>) -> Option<ConnectionAddresses> {
    let py = scope.py();
    let value = |name| scope.get_item(name).ok().flatten();
    // Over HTTP/2 a connection outlives its requests, and a body has no framing of its own.
    if !value(intern!(py, "http_version"))?.extract::<String>().ok()?.starts_with('1') {
        return None;
    }
    let (mut local, remote) =
        (parse_address(&value(intern!(py, "server"))?)?, parse_address(&value(intern!(py, "client"))?)?);
    if local.ip().is_unspecified() {
        local.set_ip(sock_diag::local_address_for(remote).ok()?);
    }
    Some(ConnectionAddresses { local, remote })
}
