//! Ends a caller's connection from outside the server, where an answer broke off and nothing within it can say so.

use std::{fs, net::IpAddr, time::Duration};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::Socket;

/// For how long the kernel keeps what a caller that was left has not read.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// The server would end a chunked body as if it were complete. A connection that closes instead is an error to every client.
pub fn hang_up((address, port): (String, String)) {
    let (Ok(address), Ok(port)) = (address.parse::<IpAddr>(), port.parse::<u16>()) else { return };
    let Ok(myself) = pidfd_open(getpid(), PidfdFlags::empty()) else { return };
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return };
    for number in descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()) {
        let Ok(descriptor) = pidfd_getfd(&myself, number, PidfdGetfdFlags::empty()) else { continue };
        let socket = Socket::from(descriptor);
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        if peer.is_some_and(|peer| peer.ip().to_canonical() == address.to_canonical() && peer.port() == port) {
            last_words(&socket);
            // It may be closed already: then there is nothing left to end.
            drop(socket.shutdown(std::net::Shutdown::Both));
        }
    }
}

/// The listener's limit for callers that do not read may be over, and the kernel tells nobody when it acts on it: whoever reads
/// again now gets what is under way and its end.
fn last_words(socket: &Socket) {
    let Ok(Some(limit)) = socket.tcp_user_timeout() else { return };
    drop(socket.set_tcp_user_timeout(Some(limit + LAST_WORDS)));
}
