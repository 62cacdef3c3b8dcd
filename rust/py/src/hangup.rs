//! Ends callers' connections from outside the server, where an answer broke off and nothing within it can say so.

use std::{
    collections::HashSet,
    fs,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::Socket;
use tokio::sync::{Notify, oneshot};

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
    let Ok(myself) = pidfd_open(getpid(), PidfdFlags::empty()) else { return };
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return };
    for number in descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()) {
        let Ok(descriptor) = pidfd_getfd(&myself, number, PidfdGetfdFlags::empty()) else { continue };
        let socket = Socket::from(descriptor);
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        if peer.is_some_and(|peer| callers.contains(&SocketAddr::new(peer.ip().to_canonical(), peer.port()))) {
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
