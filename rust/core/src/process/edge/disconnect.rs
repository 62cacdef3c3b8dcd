//! Disconnects clients from outside the HTTP server, for broken-off responses whose failure cannot be signalled within
//! HTTP.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use socket2::Socket;
use tokio::sync::{Notify, oneshot};

use crate::process::edge::process_sockets;

/// Addition to the connection's `TCP_USER_TIMEOUT`. The kernel keeps unread data of a disconnected client this much
/// longer.
const USER_TIMEOUT_EXTENSION: Duration = Duration::from_secs(3);

/// Queue of clients to disconnect. Finding a connection means scanning all open files, so queued clients are handled
/// together, off the serving thread.
#[derive(Default)]
pub struct Disconnector {
    pending: Mutex<Vec<(SocketAddr, oneshot::Sender<()>)>>,
    pending_signal: Notify,
}

impl Disconnector {
    /// Disconnects a client, and returns once its connection is closed. Until then the response must stay open, because
    /// the server would end a chunked body as if it were complete. Every client treats the closed connection as an
    /// error.
    pub async fn disconnect_client(&self, caller: SocketAddr) {
        let (sender, done) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push((caller, sender));
        self.pending_signal.notify_one();
        drop(done.await);
    }

    /// Disconnects the queued clients, forever. Clients that are queued during one scan are handled together in the
    /// next.
    pub async fn run(&self) {
        loop {
            self.pending_signal.notified().await;
            let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            let (callers, senders): (HashSet<_>, Vec<_>) = pending.into_iter().unzip();
            drop(tokio::task::spawn_blocking(move || close_connections(&callers)).await);
            for sender in senders {
                sender.send(()).ok();
            }
        }
    }
}

fn close_connections(callers: &HashSet<SocketAddr>) {
    let is_one = |socket: &Socket| {
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        let is_one = peer.is_some_and(|peer| callers.contains(&SocketAddr::new(peer.ip().to_canonical(), peer.port())));
        if is_one {
            extend_user_timeout(socket);
        }
        is_one
    };
    drop(process_sockets::shut_down_matching(|link| link.starts_with("socket:"), is_one));
}

/// Extends `TCP_USER_TIMEOUT` before the connection is closed. A client that does not read may have exceeded it already,
/// and the kernel drops such a connection silently. With the extension, a client that resumes reading still gets the
/// data in flight and the end.
fn extend_user_timeout(socket: &Socket) {
    let Ok(Some(limit)) = socket.tcp_user_timeout() else { return };
    drop(socket.set_tcp_user_timeout(Some(limit + USER_TIMEOUT_EXTENSION)));
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use socket2::SockRef;

    use super::*;

    #[tokio::test]
    async fn disconnects_only_the_queued_clients() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut callers: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut accepted: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        let limit = Duration::from_secs(20);
        SockRef::from(&accepted[0]).set_tcp_user_timeout(Some(limit)).unwrap();
        let disconnector = Disconnector::default();
        let [first, second, _] = [0, 1, 2].map(|number: usize| callers[number].local_addr().unwrap());
        tokio::select! {
            () = disconnector.run() => (),
            _ = async { tokio::join!(disconnector.disconnect_client(first), disconnector.disconnect_client(second)) } => (),
        }
        for caller in &mut callers[..2] {
            assert_eq!(caller.read(&mut [0; 8]).unwrap(), 0);
        }
        accepted[2].write_all(b"y").unwrap();
        assert_eq!(callers[2].read(&mut [0; 8]).unwrap(), 1);
        // The timeout was extended, so that a client that has not read for `limit` can still receive the end of the
        // response.
        assert_eq!(SockRef::from(&accepted[0]).tcp_user_timeout().unwrap(), Some(limit + USER_TIMEOUT_EXTENSION));
    }
}
