//! The way of records: a plain socket of the control process. A batch is its length, a mark and its lines; one byte answers it.

use std::{io, path::PathBuf};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// The answer to a batch that is in the file.
pub const BATCH_WRITTEN: u8 = b'+';

/// The connection to where records are written; opened when it is needed.
#[derive(Debug)]
pub struct RecordFeed {
    path: PathBuf,
    stream: Option<UnixStream>,
}

impl RecordFeed {
    pub fn new(path: PathBuf) -> Self {
        Self { path, stream: None }
    }

    /// Sends a batch and waits for the word that it is written; `false` where it was refused for now.
    /// `again`: it was sent before and no word came, so that it may be there already.
    pub async fn send_batch(&mut self, lines: &[u8], again: bool) -> io::Result<bool> {
        // Put back when all went well: a connection that is out of step is not used again.
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => UnixStream::connect(&self.path).await?,
        };
        let mut head = [0; 9];
        head[..8].copy_from_slice(&(lines.len() as u64).to_le_bytes());
        head[8] = u8::from(again);
        stream.write_all(&head).await?;
        stream.write_all(lines).await?;
        let answer = stream.read_u8().await?;
        self.stream = Some(stream);
        Ok(answer == BATCH_WRITTEN)
    }
}
