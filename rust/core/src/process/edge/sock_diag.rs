//! Kernel queries: open TCP connections through `sock_diag(7)`, and the local address for a route. `sock_diag` avoids
//! inspecting every open file.

use std::{
    io::{self, Read},
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

const AF_NETLINK: i32 = 16;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
/// Bit of a request that asks `inet_diag` for `tcp_info`.
const INET_DIAG_INFO_BIT: u8 = 1 << 1;
/// Attribute number of `tcp_info` in a reply.
const INET_DIAG_INFO: u16 = 2;
/// Length of the netlink header.
const NETLINK_HEADER_BYTES: usize = 16;
/// Length of `inet_diag_msg`.
const INET_DIAG_MSG_BYTES: usize = 72;
// Offsets of fields in `inet_diag_msg`.
const STATE_OFFSET: usize = 1;
const REMOTE_PORT_OFFSET: usize = 6;
const REMOTE_ADDR_OFFSET: usize = 24;
const INODE_OFFSET: usize = 68;
// Offsets of fields in `tcp_info`.
const LAST_RECEIVED_OFFSET: usize = 52;
const BYTES_ACKED_OFFSET: usize = 120;
const BYTES_RECEIVED_OFFSET: usize = 128;

/// A TCP connection that is open in both directions.
#[derive(Debug, Clone, Copy)]
pub struct TcpConnection {
    pub inode: u32,
    pub remote: SocketAddr,
    /// Bytes received from the peer.
    pub received_bytes: u64,
    pub since_last_received: Duration,
    /// Bytes that the peer has acknowledged.
    pub acked_bytes: u64,
}

/// Returns true if the connection is open in both directions.
pub fn is_connection_open(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let diag_request = SockDiagRequest { flags: NLM_F_REQUEST, family, extensions: 0, states: u32::MAX, local, remote };
    let mut netlink = send_diag_request(&diag_request)?;
    let mut response = [0; 1024];
    let length = netlink.read(&mut response)?;
    let message = response.get(..length).filter(|message| message_type(message) == Some(SOCK_DIAG_BY_FAMILY));
    Ok(message.and_then(|message| message.get(NETLINK_HEADER_BYTES + STATE_OFFSET)) == Some(&TCP_ESTABLISHED))
}

/// Lists the open connections that were accepted at a local port.
pub fn list_open_connections(port: u16) -> io::Result<Vec<TcpConnection>> {
    let mut connections = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let any = |port| SocketAddr::new([0, 0, 0, 0].into(), port);
        let diag_request = SockDiagRequest {
            flags: NLM_F_REQUEST | NLM_F_DUMP,
            family,
            extensions: INET_DIAG_INFO_BIT,
            states: 1 << TCP_ESTABLISHED,
            local: any(port),
            remote: any(0),
        };
        let mut netlink = send_diag_request(&diag_request)?;
        let mut response = vec![0; 64 * 1024];
        loop {
            let length = netlink.read(&mut response)?;
            if !parse_datagram(&response[..length], &mut connections) {
                break;
            }
        }
    }
    Ok(connections)
}

/// Returns the local address that this machine's routes use for a remote address. Sends nothing.
pub fn local_address_for(remote: SocketAddr) -> io::Result<IpAddr> {
    let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// Parses the connections in one datagram. Returns false if it contains the final message or an error.
fn parse_datagram(mut messages: &[u8], connections: &mut Vec<TcpConnection>) -> bool {
    while let (Some(length), Some(SOCK_DIAG_BY_FAMILY)) = (read_u32(messages, 0), message_type(messages)) {
        let Some(message) = messages.get(..length as usize) else { return false };
        connections.extend(parse_connection(message));
        let Some(rest) = messages.get((length as usize).next_multiple_of(4)..) else { return true };
        messages = rest;
    }
    messages.is_empty()
}

fn parse_connection(message: &[u8]) -> Option<TcpConnection> {
    let inode = read_u32(message, NETLINK_HEADER_BYTES + INODE_OFFSET)?;
    let remote = parse_remote_addr(message.get(NETLINK_HEADER_BYTES..)?)?;
    let mut attributes = message.get(NETLINK_HEADER_BYTES + INET_DIAG_MSG_BYTES..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        if u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?) == INET_DIAG_INFO {
            let info = attributes.get(4..length)?;
            let counted = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
            let (received, sent) = (counted(BYTES_RECEIVED_OFFSET)?, counted(BYTES_ACKED_OFFSET)?);
            let quiet = Duration::from_millis(read_u32(info, LAST_RECEIVED_OFFSET)?.into());
            return Some(TcpConnection {
                inode,
                remote,
                received_bytes: received,
                since_last_received: quiet,
                acked_bytes: sent,
            });
        }
        attributes = attributes.get(length.next_multiple_of(4).max(4)..)?;
    }
}

fn parse_remote_addr(description: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*description.get(REMOTE_PORT_OFFSET..)?.first_chunk()?);
    let address = description.get(REMOTE_ADDR_OFFSET..)?;
    let ip = if description.first() == Some(&AF_INET) {
        IpAddr::from(*address.first_chunk::<4>()?)
    } else {
        IpAddr::from(*address.first_chunk::<16>()?).to_canonical()
    };
    Some(SocketAddr::new(ip, port))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn message_type(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(*message.get(4..)?.first_chunk()?))
}

struct SockDiagRequest {
    flags: u16,
    family: u8,
    extensions: u8,
    states: u32,
    local: SocketAddr,
    remote: SocketAddr,
}

fn send_diag_request(diag_request: &SockDiagRequest) -> io::Result<Socket> {
    let SockDiagRequest { flags, family, extensions, states, local, remote } = *diag_request;
    let mut body = vec![family, IPPROTO_TCP, extensions, 0];
    body.extend(states.to_ne_bytes());
    body.extend(local.port().to_be_bytes());
    body.extend(remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        let mut bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        bytes.resize(16, 0);
        body.extend(bytes);
    }
    // Any interface, no cookie.
    body.extend(0_u32.to_ne_bytes());
    body.extend([0xff; 8]);
    let mut message = ((NETLINK_HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let netlink = Socket::new(Domain::from(AF_NETLINK), Type::DGRAM, Some(Protocol::from(NETLINK_SOCK_DIAG)))?;
    netlink.send(&message)?;
    Ok(netlink)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{Shutdown, TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn connection_is_open_until_peer_shuts_down() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, remote) = listener.accept().unwrap();
        let local = accepted.local_addr().unwrap();
        assert!(is_connection_open(local, remote).unwrap());
        assert!(!is_connection_open(local, SocketAddr::new(remote.ip(), 1)).unwrap_or_default());
        caller.shutdown(Shutdown::Write).unwrap();
        assert!(!is_connection_open(local, remote).unwrap());
    }

    #[test]
    fn lists_connections_of_a_port_with_received_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pair = |_| (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let (mut callers, accepted): (Vec<_>, Vec<_>) = (0..300).map(pair).unzip();
        callers[7].write_all(b"PRI").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let open = list_open_connections(address.port()).unwrap();
        assert_eq!(open.len(), accepted.len());
        let received: Vec<_> =
            open.iter().map(|connection| connection.received_bytes).filter(|bytes| *bytes > 0).collect();
        assert_eq!(received, [3]);
        let remotes: Vec<_> = callers.iter().map(|caller| caller.local_addr().unwrap()).collect();
        assert!(open.iter().all(|one| remotes.contains(&one.remote)));
        assert!(open.iter().all(|one| one.since_last_received >= Duration::from_millis(20)
            && one.since_last_received < Duration::from_secs(5)));
    }

    #[test]
    fn local_address_for_loopback_is_loopback() {
        assert_eq!(local_address_for(([127, 0, 0, 1], 9).into()).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
