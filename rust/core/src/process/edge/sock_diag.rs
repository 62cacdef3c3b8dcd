//! What the kernel knows of TCP connections (`sock_diag(7)`), asked without looking at every open file, and of ways to others.

use std::{
    io::{self, Read},
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

const NETLINK: i32 = 16;
const SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const INET: u8 = 2;
const INET6: u8 = 10;
const TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
/// The bit and the number of `tcp_info` among a connection's attributes.
const WANT_INFO: u8 = 1 << 1;
const INFO: u16 = 2;
// Lengths of the heads of a message and of a connection's description, and where fields stand in the latter and in `tcp_info`.
const HEAD: usize = 16;
const DESCRIPTION: usize = 72;
const STATE_AT: usize = 1;
const REMOTE_PORT_AT: usize = 6;
const REMOTE_AT: usize = 24;
const INODE_AT: usize = 68;
const LAST_RECEIVED_AT: usize = 52;
const BYTES_SENT_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;

/// A connection that is open in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    pub inode: u32,
    pub remote: SocketAddr,
    /// What has come from the other side, and how long ago the last of it.
    pub received: u64,
    pub quiet: Duration,
    /// What the other side has taken.
    pub sent: u64,
}

/// Whether one connection is open in both directions.
pub fn is_open(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    let family = if local.is_ipv4() { INET } else { INET6 };
    let question = Question { flags: REQUEST, family, extensions: 0, states: u32::MAX, local, remote };
    let mut asking = ask(&question)?;
    let mut answer = [0; 1024];
    let length = asking.read(&mut answer)?;
    let message = answer.get(..length).filter(|message| kind(message) == Some(SOCK_DIAG_BY_FAMILY));
    Ok(message.and_then(|message| message.get(HEAD + STATE_AT)) == Some(&ESTABLISHED))
}

/// The open connections that came in at a port.
pub fn open_at(port: u16) -> io::Result<Vec<Open>> {
    let mut found = Vec::new();
    for family in [INET, INET6] {
        let any = |port| SocketAddr::new([0, 0, 0, 0].into(), port);
        let question = Question {
            flags: REQUEST | DUMP,
            family,
            extensions: WANT_INFO,
            states: 1 << ESTABLISHED,
            local: any(port),
            remote: any(0),
        };
        let mut asking = ask(&question)?;
        let mut answer = vec![0; 64 * 1024];
        loop {
            let length = asking.read(&mut answer)?;
            if !take(&answer[..length], &mut found) {
                break;
            }
        }
    }
    Ok(found)
}

/// Our address as somebody sees it, by the routes of this machine; nothing is sent.
pub fn way_to(remote: SocketAddr) -> io::Result<IpAddr> {
    let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// Takes the connections of one datagram; false where it holds the last or an error.
fn take(mut messages: &[u8], found: &mut Vec<Open>) -> bool {
    while let (Some(length), Some(SOCK_DIAG_BY_FAMILY)) = (number(messages, 0), kind(messages)) {
        let Some(message) = messages.get(..length as usize) else { return false };
        found.extend(described(message));
        let Some(rest) = messages.get((length as usize).next_multiple_of(4)..) else { return true };
        messages = rest;
    }
    messages.is_empty()
}

fn described(message: &[u8]) -> Option<Open> {
    let inode = number(message, HEAD + INODE_AT)?;
    let remote = remote(message.get(HEAD..)?)?;
    let mut attributes = message.get(HEAD + DESCRIPTION..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        if u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?) == INFO {
            let info = attributes.get(4..length)?;
            let counted = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
            let (received, sent) = (counted(BYTES_RECEIVED_AT)?, counted(BYTES_SENT_AT)?);
            let quiet = Duration::from_millis(number(info, LAST_RECEIVED_AT)?.into());
            return Some(Open { inode, remote, received, quiet, sent });
        }
        attributes = attributes.get(length.next_multiple_of(4).max(4)..)?;
    }
}

fn remote(description: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*description.get(REMOTE_PORT_AT..)?.first_chunk()?);
    let address = description.get(REMOTE_AT..)?;
    let ip = if description.first() == Some(&INET) {
        IpAddr::from(*address.first_chunk::<4>()?)
    } else {
        IpAddr::from(*address.first_chunk::<16>()?).to_canonical()
    };
    Some(SocketAddr::new(ip, port))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn kind(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(*message.get(4..)?.first_chunk()?))
}

struct Question {
    flags: u16,
    family: u8,
    extensions: u8,
    states: u32,
    local: SocketAddr,
    remote: SocketAddr,
}

fn ask(question: &Question) -> io::Result<Socket> {
    let Question { flags, family, extensions, states, local, remote } = *question;
    let mut body = vec![family, TCP, extensions, 0];
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
    // Interface: any. Cookie: none.
    body.extend(0_u32.to_ne_bytes());
    body.extend([0xff; 8]);
    let mut message = ((HEAD + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let asking = Socket::new(Domain::from(NETLINK), Type::DGRAM, Some(Protocol::from(SOCK_DIAG)))?;
    asking.send(&message)?;
    Ok(asking)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{Shutdown, TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn a_connection_is_open_until_its_other_side_ends_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, remote) = listener.accept().unwrap();
        let local = here.local_addr().unwrap();
        assert!(is_open(local, remote).unwrap());
        assert!(!is_open(local, SocketAddr::new(remote.ip(), 1)).unwrap_or_default());
        caller.shutdown(Shutdown::Write).unwrap();
        assert!(!is_open(local, remote).unwrap());
    }

    #[test]
    fn what_came_in_at_a_port_is_listed_with_what_it_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pair = |_| (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let (mut callers, accepted): (Vec<_>, Vec<_>) = (0..300).map(pair).unzip();
        callers[7].write_all(b"PRI").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let open = open_at(address.port()).unwrap();
        assert_eq!(open.len(), accepted.len());
        let said: Vec<_> = open.iter().map(|one| one.received).filter(|bytes| *bytes > 0).collect();
        assert_eq!(said, [3]);
        let remotes: Vec<_> = callers.iter().map(|caller| caller.local_addr().unwrap()).collect();
        assert!(open.iter().all(|one| remotes.contains(&one.remote)));
        assert!(open.iter().all(|one| one.quiet >= Duration::from_millis(20) && one.quiet < Duration::from_secs(5)));
    }

    #[test]
    fn the_way_to_a_neighbour_begins_here() {
        assert_eq!(way_to(([127, 0, 0, 1], 9).into()).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
