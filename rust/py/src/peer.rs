//! Peer addresses and connection checks. The server reports a disconnect and an invalid body in the same way. The
//! kernel's socket state distinguishes them.

use std::net::{IpAddr, SocketAddr};

use penstock_core::process::edge::sock_diag;
use pyo3::{intern, prelude::*, types::PyDict};

/// Both addresses of an HTTP/1 connection.
#[derive(Clone, Copy)]
pub struct ConnectionAddresses {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// Returns true if the connection of a request is open in both directions; false if that is unknown.
pub fn is_connected(scope: &Bound<'_, PyDict>) -> bool {
    connection_addresses(scope).is_some_and(|ConnectionAddresses { local, remote }| {
        sock_diag::is_connection_open(local, remote).unwrap_or_default()
    })
}

/// Returns the client's address, and true if it uses HTTP/2.
pub fn client_address(scope: &Bound<'_, PyDict>) -> Option<(SocketAddr, bool)> {
    let py = scope.py();
    let value = |name| scope.get_item(name).ok().flatten();
    let is_http2 = value(intern!(py, "http_version"))?.extract::<String>().ok()?.starts_with('2');
    Some((parse_address(&value(intern!(py, "client"))?)?, is_http2))
}

/// Parses an address and port as the server reports them.
pub fn parse_address(end: &Bound<'_, PyAny>) -> Option<SocketAddr> {
    let (ip, port): (String, String) = end.extract().ok()?;
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?.to_canonical(), port.parse().ok()?))
}

/// Returns the addresses of a request's HTTP/1 connection; `None` for HTTP/2.
pub fn connection_addresses(scope: &Bound<'_, PyDict>) -> Option<ConnectionAddresses> {
    let py = scope.py();
    let value = |name| scope.get_item(name).ok().flatten();
    // An HTTP/2 connection outlives its requests, and an HTTP/2 body has no framing that could be invalid.
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
