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
const LAST_WORDS: Duration = Duration::from_secs(3);

/// The callers whose connections are to end. All open files are looked at to find one of them: so it is done for all of them
/// at once, and not on the thread that serves.
#[derive(Default)]
pub struct HangUps {
    waiting: Mutex<Vec<(SocketAddr, oneshot::Sender<()>)>>,
    there: Notify,
}

impl HangUps {
    /// Ends a caller's connection. Until then its answer must stay open: the server would end a chunked body as if it were
    /// complete. A connection that closes instead is an error to every client.
    pub async fn hang_up(&self, caller: SocketAddr) {
        let (tell, done) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push((caller, tell));
        self.there.notify_one();
        drop(done.await);
    }

    /// Ends those that were asked for, for ever. Who comes meanwhile has the next turn together.
    pub async fn carry_out(&self) {
        loop {
            self.there.notified().await;
            let asked = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            let (callers, tell): (HashSet<_>, Vec<_>) = asked.into_iter().unzip();
            drop(tokio::task::spawn_blocking(move || end(&callers)).await);
            for tell in tell {
                tell.send(()).ok();
            }
        }
    }
}

fn end(callers: &HashSet<SocketAddr>) {
    let is_one = |socket: &Socket| {
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        let is_one = peer.is_some_and(|peer| callers.contains(&SocketAddr::new(peer.ip().to_canonical(), peer.port())));
        if is_one {
            last_words(socket);
        }
        is_one
    };
    drop(process_sockets::end(|link| link.starts_with("socket:"), is_one));
}

/// The listener's limit for callers that do not read may be over, and the kernel tells nobody when it acts on it: whoever reads
/// again now gets what is under way and its end.
fn last_words(socket: &Socket) {
    let Ok(Some(limit)) = socket.tcp_user_timeout() else { return };
    drop(socket.set_tcp_user_timeout(Some(limit + LAST_WORDS)));
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
    async fn who_is_hung_up_on_reads_the_end_and_nobody_else_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut callers: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut accepted: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        let limit = Duration::from_secs(20);
        SockRef::from(&accepted[0]).set_tcp_user_timeout(Some(limit)).unwrap();
        let hang_ups = HangUps::default();
        let [first, second, _] = [0, 1, 2].map(|number: usize| callers[number].local_addr().unwrap());
        tokio::select! {
            () = hang_ups.carry_out() => (),
            _ = async { tokio::join!(hang_ups.hang_up(first), hang_ups.hang_up(second)) } => (),
        }
        for caller in &mut callers[..2] {
            assert_eq!(caller.read(&mut [0; 8]).unwrap(), 0);
        }
        accepted[2].write_all(b"y").unwrap();
        assert_eq!(callers[2].read(&mut [0; 8]).unwrap(), 1);
        // Whoever did not read for so long may still read the end.
        assert_eq!(SockRef::from(&accepted[0]).tcp_user_timeout().unwrap(), Some(limit + LAST_WORDS));
    }
}
