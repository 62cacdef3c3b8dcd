//! Sends request log batches to the control process over a Unix socket. A batch is its length, a resend flag and its
//! lines; the response is one byte.

use std::{io, path::PathBuf};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// Response to a batch that was written to the file.
pub const BATCH_WRITTEN: u8 = b'+';

/// Connection to the process that writes records, opened when needed.
#[derive(Debug)]
pub struct RecordFeed {
    path: PathBuf,
    stream: Option<UnixStream>,
}

impl RecordFeed {
    pub fn new(path: PathBuf) -> Self {
        Self { path, stream: None }
    }

    /// Sends a batch and waits for the acknowledgement. Returns false if the batch was rejected for now. `again` is
    /// true if the batch was sent before without an acknowledgement, so that it may already be written.
    pub async fn send_batch(&mut self, lines: &[u8], again: bool) -> io::Result<bool> {
        // Stored again only on success: a connection that is out of sync is not reused.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => UnixStream::connect(&self.path).await?,
        };
        let mut head = [0; 9];
        head[..8].copy_from_slice(&(lines.len() as u64).to_le_bytes());
        head[8] = u8::from(again);
        stream.write_all(&head).await?;
        stream.write_all(lines).await?;
        let response = stream.read_u8().await?;
        self.stream = Some(stream);
        Ok(response == BATCH_WRITTEN)
    }
}
