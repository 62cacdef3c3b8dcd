//! Whether the caller of a body that cannot be read is still there. The server does not tell one who left from one who sends nonsense.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use pyo3::{intern, prelude::*, types::PyDict};

use crate::kernel;

/// Both ends of a connection of HTTP/1.
#[derive(Clone, Copy)]
pub struct Way {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// Whether the connection of a request is open in both directions. Where that cannot be known it is not.
pub fn is_there(scope: &Bound<'_, PyDict>) -> bool {
    way(scope).is_some_and(|Way { local, remote }| kernel::is_open(local, remote).unwrap_or_default())
}

/// Where a request's caller is, and whether it speaks HTTP/2.
pub fn caller(scope: &Bound<'_, PyDict>) -> Option<(SocketAddr, bool)> {
    let py = scope.py();
    let value = |name| scope.get_item(name).ok().flatten();
    let (ip, port): (String, String) = value(intern!(py, "client"))?.extract().ok()?;
    let is_http2 = value(intern!(py, "http_version"))?.extract::<String>().ok()?.starts_with('2');
    Some((SocketAddr::new(ip.parse::<IpAddr>().ok()?.to_canonical(), port.parse().ok()?), is_http2))
}

/// Where a request's connection is.
pub fn way(scope: &Bound<'_, PyDict>) -> Option<Way> {
    let py = scope.py();
    let value = |name| scope.get_item(name).ok().flatten();
    // Over HTTP/2 a connection outlives its requests, and a body has no framing of its own.
    if !value(intern!(py, "http_version"))?.extract::<String>().ok()?.starts_with('1') {
        return None;
    }
    let address = |name| {
        let (ip, port): (String, String) = value(name)?.extract().ok()?;
        Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?.to_canonical(), port.parse().ok()?))
    };
    let (mut local, remote) = (address(intern!(py, "server"))?, address(intern!(py, "client"))?);
    if local.ip().is_unspecified() {
        local.set_ip(way_to(remote).ok()?);
    }
    Some(Way { local, remote })
}

/// Our address as somebody sees it, by the routes of this machine; nothing is sent.
fn way_to(remote: SocketAddr) -> io::Result<IpAddr> {
    let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_neighbour_begins_here() {
        assert_eq!(way_to(([127, 0, 0, 1], 9).into()).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
