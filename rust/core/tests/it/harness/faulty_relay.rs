//! Relay in front of a server whose traffic a test can hold back, delay or refuse.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};

/// What a relay does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayMode {
    Forward,
    /// Delays each chunk.
    Delay(Duration),
    /// Receives data and passes nothing on, until the mode changes.
    Hold,
    /// Closes all connections.
    Refuse,
}

pub struct FaultyRelay {
    pub addr: SocketAddr,
    mode: watch::Sender<RelayMode>,
}

impl FaultyRelay {
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (mode, modes) = watch::channel(RelayMode::Forward);
        tokio::spawn(accept(listener, server, modes));
        Self { addr, mode }
    }

    pub fn set_mode(&self, mode: RelayMode) {
        self.mode.send_replace(mode);
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, mut modes: watch::Receiver<RelayMode>) {
    let mut copies = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                if *modes.borrow() == RelayMode::Refuse {
                    continue;
                }
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let ((from, to), (back, first)) = (client.into_split(), server.into_split());
                copies.spawn(copy(from, first, modes.clone()));
                copies.spawn(copy(back, to, modes.clone()));
            }
            changed = modes.changed() => {
                if changed.is_err() {
                    return;
                }
                if *modes.borrow() == RelayMode::Refuse {
                    copies.abort_all();
                }
            }
        }
    }
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut modes: watch::Receiver<RelayMode>,
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let mode = *modes.borrow();
        if let RelayMode::Delay(delay) = mode {
            sleep(delay).await;
        }
        if modes.wait_for(|mode| *mode != RelayMode::Hold).await.is_err()
            || to.write_all(&bytes[..count]).await.is_err()
        {
            return;
        }
    }
}
