//! Exchange of frames with a process of this machine, over its Unix socket. A frame is a length of four bytes in
//! big-endian order, followed by the content.

use std::path::Path;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// Sends a frame over a new connection, and returns the frame that the process sends back.
///
/// # Errors
/// Returns a message without a subject, such as `cannot run: …`. The caller puts the subject in front of it, such as
/// the name of a check.
pub async fn exchange_frames(socket: &Path, frame: &[u8], max_reply_bytes: usize) -> Result<Vec<u8>, String> {
    let failed = |_| "cannot run: its process closed the connection".to_owned();
    let mut stream = UnixStream::connect(socket).await.map_err(failed)?;
    let length = u32::try_from(frame.len()).map_err(|_| "got too large a frame".to_owned())?;
    stream.write_all(&length.to_be_bytes()).await.map_err(failed)?;
    stream.write_all(frame).await.map_err(failed)?;
    let length = stream.read_u32().await.map_err(failed)? as usize;
    if length > max_reply_bytes {
        return Err(format!("returned {length} bytes; at most {max_reply_bytes} are allowed"));
    }
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply).await.map_err(failed)?;
    Ok(reply)
}
