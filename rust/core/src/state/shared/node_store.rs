//! Client of the node-local key-value store. Workers of one node share short values through the control process when
//! Redis is not configured.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// Capacity of the command queue. Commands beyond it are dropped and counted.
const MAX_QUEUED_COMMANDS: usize = 1024;
/// Maximum wait for a reply. After it, the request continues as if no value were stored. The control process needs
/// about this long to restart.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Command to the control process. Commands run in order, so a read that follows a write sees the written value.
#[derive(Debug)]
pub enum NodeStoreCommand {
    /// Stores a value. `reply`, if set, receives the value that it replaces.
    Put {
        key: String,
        value: String,
        reply: Option<oneshot::Sender<Option<String>>>,
    },
    Get {
        key: String,
        reply: oneshot::Sender<Option<String>>,
    },
}

impl NodeStoreCommand {
    /// Returns true for a read whose requester has stopped waiting.
    pub fn is_abandoned(&self) -> bool {
        matches!(self, Self::Get { reply, .. } if reply.is_closed())
    }

    /// Sends the value to the requester if it still waits.
    pub fn send_reply(self, value: Option<String>) {
        if let Self::Put { reply: Some(reply), .. } | Self::Get { reply, .. } = self {
            drop(reply.send(value));
        }
    }
}

#[derive(Debug)]
pub struct NodeStoreClient {
    commands: mpsc::Sender<NodeStoreCommand>,
    receiver: Mutex<Option<mpsc::Receiver<NodeStoreCommand>>>,
    dropped_count: AtomicU64,
    unanswered_count: AtomicU64,
}

impl Default for NodeStoreClient {
    fn default() -> Self {
        let (commands, receiver) = mpsc::channel(MAX_QUEUED_COMMANDS);
        Self {
            commands,
            receiver: Mutex::new(Some(receiver)),
            dropped_count: AtomicU64::new(0),
            unanswered_count: AtomicU64::new(0),
        }
    }
}

impl NodeStoreClient {
    /// Stores a value without waiting for the control process.
    pub fn put(&self, name: String, value: String) {
        self.try_send(NodeStoreCommand::Put { key: name, value, reply: None });
    }

    /// Stores a value and returns the one that it replaces; `None` if there was none or no reply came within
    /// `REPLY_TIMEOUT`. A client's request waits until this returns.
    pub async fn swap(&self, name: String, value: String) -> Option<String> {
        self.send_and_wait(|reply| NodeStoreCommand::Put { key: name, value, reply: Some(reply) }).await
    }

    /// Returns the value stored under this key; `None` if there is none or no reply came within `REPLY_TIMEOUT`. A
    /// client's request waits until this returns.
    pub async fn get(&self, name: String) -> Option<String> {
        self.send_and_wait(|reply| NodeStoreCommand::Get { key: name, reply }).await
    }

    async fn send_and_wait(
        &self,
        build_command: impl FnOnce(oneshot::Sender<Option<String>>) -> NodeStoreCommand,
    ) -> Option<String> {
        let (reply, receiver) = oneshot::channel();
        if !self.try_send(build_command(reply)) {
            return None;
        }
        let answered = timeout(REPLY_TIMEOUT, receiver).await;
        if answered.is_err() {
            self.unanswered_count.fetch_add(1, Ordering::Relaxed);
        }
        answered.ok()?.ok()?
    }

    fn try_send(&self, command: NodeStoreCommand) -> bool {
        let is_taken = self.commands.try_send(command).is_ok();
        if !is_taken {
            self.dropped_count.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    pub fn dropped_count(&self) -> u64 {
        self.dropped_count.load(Ordering::Relaxed)
    }

    /// Returns how many requests got no reply within `REPLY_TIMEOUT`.
    pub fn unanswered_count(&self) -> u64 {
        self.unanswered_count.load(Ordering::Relaxed)
    }

    /// Returns the receiving end of the command queue. `None` after the first call.
    pub fn take_command_receiver(&self) -> Option<mpsc::Receiver<NodeStoreCommand>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn counts_dropped_commands_when_the_queue_is_full() {
        let node_store = NodeStoreClient::default();
        for number in 0..MAX_QUEUED_COMMANDS + 2 {
            node_store.put(number.to_string(), String::new());
        }
        assert_eq!((node_store.get("7".into()).await, node_store.dropped_count()), (None, 3));
        let mut commands = node_store.take_command_receiver().unwrap();
        assert!(matches!(commands.recv().await, Some(NodeStoreCommand::Put { key, .. }) if key == "0"));
        assert!(node_store.take_command_receiver().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn returns_none_when_no_reply_comes_in_time() {
        let node_store = NodeStoreClient::default();
        assert_eq!(node_store.get("a".into()).await, None);
        assert_eq!((node_store.dropped_count(), node_store.unanswered_count()), (0, 1));
    }
}
