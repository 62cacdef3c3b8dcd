//! Ends callers' connections from outside the server, where an answer broke off and nothing within it can say so.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use socket2::Socket;
use tokio::sync::{Notify, oneshot};

use crate::process::edge::process_sockets;

/// For how long the kernel keeps what a caller that was left has not read.
const USER_TIMEOUT_EXTENSION: Duration = Duration::from_secs(3);

/// The callers whose connections are to end. All open files are looked at to find one of them: so it is done for all of them
/// at once, and not on the thread that serves.
#[derive(Default)]
pub struct Disconnector {
    pending: Mutex<Vec<(SocketAddr, oneshot::Sender<()>)>>,
    pending_signal: Notify,
}

impl Disconnector {
    /// Ends a caller's connection. Until then its answer must stay open: the server would end a chunked body as if it were
    /// complete. A connection that closes instead is an error to every client.
    pub async fn disconnect_client(&self, caller: SocketAddr) {
        let (tell, done) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push((caller, tell));
        self.pending_signal.notify_one();
        drop(done.await);
    }

    /// Ends those that were asked for, for ever. Who comes meanwhile has the next turn together.
    pub async fn run(&self) {
        loop {
            self.pending_signal.notified().await;
            let asked = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            let (callers, tell): (HashSet<_>, Vec<_>) = asked.into_iter().unzip();
            drop(tokio::task::spawn_blocking(move || close_connections(&callers)).await);
            for tell in tell {
                tell.send(()).ok();
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

/// The listener's limit for callers that do not read may be over, and the kernel tells nobody when it acts on it: whoever reads
/// again now gets what is under way and its end.
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
        let hang_ups = Disconnector::default();
        let [first, second, _] = [0, 1, 2].map(|number: usize| callers[number].local_addr().unwrap());
        tokio::select! {
            () = hang_ups.run() => (),
            _ = async { tokio::join!(hang_ups.disconnect_client(first), hang_ups.disconnect_client(second)) } => (),
        }
        for caller in &mut callers[..2] {
            assert_eq!(caller.read(&mut [0; 8]).unwrap(), 0);
        }
        accepted[2].write_all(b"y").unwrap();
        assert_eq!(callers[2].read(&mut [0; 8]).unwrap(), 1);
        // Whoever did not read for so long may still read the end.
        assert_eq!(SockRef::from(&accepted[0]).tcp_user_timeout().unwrap(), Some(limit + USER_TIMEOUT_EXTENSION));
    }
}
