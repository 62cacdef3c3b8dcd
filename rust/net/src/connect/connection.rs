//! One connection to a provider or the control process. Holds no read buffer while it is idle.

use std::{
    cell::RefCell,
    future::poll_fn,
    io::{self, Read},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::{Sleep, sleep},
};
use tokio_rustls::client::TlsStream;

/// Size of the read buffer that all connections of a thread share. A connection gets an exact copy of the received
/// bytes, so an idle stream holds no buffer.
pub const MAX_READ_BYTES: usize = 64 * 1024;

/// Maximum bytes of one system call that writes a part of a body, after which other tasks run. A fast reader could
/// otherwise make the kernel copy a whole large body in one call.
const MAX_WRITE_BYTES: usize = 512 * 1024;

/// Time after which a request is aborted if the provider has responded and reads no more of the request.
const STALLED_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

thread_local! {
    static SCRATCH_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_READ_BYTES]);
}

pub enum Transport {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

/// An open connection, with the bytes that were read beyond the current message.
pub struct Connection {
    transport: Transport,
    pub buffer: BytesMut,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Connection")
    }
}

impl Connection {
    pub fn new(transport: Transport) -> Self {
        Self { transport, buffer: BytesMut::new() }
    }

    /// Reads available bytes into `buffer`, at most `max_bytes` (and no more than [`MAX_READ_BYTES`]). Returns 0 at the end
    /// of the stream.
    pub async fn read(&mut self, max_bytes: usize) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, max_bytes)).await
    }

    fn poll_read(&mut self, context: &mut Context<'_>, max_bytes: usize) -> Poll<io::Result<usize>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let mut read = ReadBuf::new(&mut scratch[..max_bytes.min(MAX_READ_BYTES)]);
            ready!(self.poll_read_transport(context, &mut read))?;
            self.buffer.extend_from_slice(read.filled());
            Poll::Ready(Ok(read.filled().len()))
        })
    }

    /// Reads from the transport directly, without `buffer`.
    pub fn poll_read_transport(&mut self, context: &mut Context<'_>, read: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_read(context, read),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, read),
            Transport::Unix(stream) => Pin::new(stream).poll_read(context, read),
        }
    }

    /// Writes `first` and then `second` completely, in as few system calls as possible. Fails if the provider rejects
    /// the request first. Between the parts of a large body, other tasks run.
    pub async fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<()> {
        let (mut done, mut unyielded) = (0, 0);
        while done < first.len() + second.len() {
            if unyielded >= MAX_WRITE_BYTES {
                tokio::task::yield_now().await;
                unyielded = 0;
            }
            let head = part_of(first, done.min(first.len()));
            let has_end = done + head.len() >= first.len();
            let body = if has_end { part_of(second, done.saturating_sub(first.len())) } else { &[] };
            let rest = Buf::chain(head, body);
            let mut max_wait = None;
            let written = poll_fn(|context| match self.poll_write_buf(context, &rest) {
                Poll::Pending => self.poll_stalled_write(context, &mut max_wait).map(Err),
                written @ Poll::Ready(_) => written,
            });
            let written = written.await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            done += written;
            unyielded += written;
        }
        // TLS buffers more than its socket accepts, so the flush watches for a rejection too.
        let mut max_wait = None;
        let flushed = poll_fn(|context| match self.poll_flush_transport(context) {
            Poll::Pending => self.poll_stalled_write(context, &mut max_wait).map(Err),
            done @ Poll::Ready(_) => done,
        });
        flushed.await
    }

    /// Resolves when the provider closes the connection, or begins a response that makes the rest of the request
    /// unnecessary.
    pub async fn wait_for_rejection(&mut self) -> io::Error {
        poll_fn(|context| self.poll_rejection(context)).await
    }

    fn poll_rejection(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        while self.buffer.len() < MAX_READ_BYTES {
            match ready!(self.poll_read(context, MAX_READ_BYTES)) {
                Err(error) => return Poll::Ready(error),
                Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if !is_rejection(&self.buffer) => (),
                Ok(_) => return Poll::Ready(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        Poll::Pending
    }

    /// Resolves if the pending write will not complete. Either the provider rejected the request, or it sent a
    /// successful response and then accepted no data for `STALLED_WRITE_TIMEOUT`.
    fn poll_stalled_write(
        &mut self,
        context: &mut Context<'_>,
        max_wait: &mut Option<Pin<Box<Sleep>>>,
    ) -> Poll<io::Error> {
        if let refused @ Poll::Ready(_) = self.poll_rejection(context) {
            return refused;
        }
        if memchr::memmem::find(skip_informational(&self.buffer), b"\r\n\r\n").is_none() {
            return Poll::Pending;
        }
        let max_wait = max_wait.get_or_insert_with(|| Box::pin(sleep(STALLED_WRITE_TIMEOUT)));
        max_wait.as_mut().poll(context).map(|()| io::ErrorKind::ConnectionAborted.into())
    }

    /// Writes as much as the socket accepts.
    pub fn poll_write_buf(&mut self, context: &mut Context<'_>, rest: &impl Buf) -> Poll<io::Result<usize>> {
        let mut slices = [io::IoSlice::new(&[]); 2];
        let count = rest.chunks_vectored(&mut slices);
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, &slices[..count]),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(context, &slices[..count]),
            Transport::Unix(stream) => Pin::new(stream).poll_write_vectored(context, &slices[..count]),
        }
    }

    /// Flushes written bytes. Only TLS buffers any.
    pub fn poll_flush_transport(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tcp(_) | Transport::Unix(_) => Poll::Ready(Ok(())),
        }
    }

    /// Closes the writing side.
    pub fn poll_shutdown_transport(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    /// Returns true if nothing was received since the last use. A pooled connection with readable bytes was closed or
    /// is out of sync.
    pub fn is_idle(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        if !self.buffer.is_empty() {
            return false;
        }
        match &mut self.transport {
            Transport::Tcp(stream) => stream.poll_read_ready(&mut context).is_pending(),
            Transport::Tls(stream) => {
                let (socket, session) = stream.get_mut();
                // Bytes that TLS has already read from the socket, a close notification included, no longer make the
                // socket readable.
                let is_read =
                    !matches!(session.reader().read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
                !is_read && socket.poll_read_ready(&mut context).is_pending()
            }
            Transport::Unix(stream) => stream.poll_read_ready(&mut context).is_pending(),
        }
    }
}

/// Returns true if a response has begun that makes the rest of the request pointless. Decides by the first digit of the
/// status: 1xx is not final, and after 2xx the provider may still need the rest.
fn is_rejection(buffer: &[u8]) -> bool {
    !matches!(skip_informational(buffer).get(9), None | Some(b'1' | b'2'))
}

/// Returns the next bytes to write, from a position on.
fn part_of(bytes: &[u8], start: usize) -> &[u8] {
    &bytes[start..bytes.len().min(start + MAX_WRITE_BYTES)]
}

/// Returns the buffer from the final response on, without 1xx responses.
fn skip_informational(mut buffer: &[u8]) -> &[u8] {
    loop {
        match (buffer.get(9), memchr::memmem::find(buffer, b"\r\n\r\n")) {
            (Some(b'1'), Some(end)) => buffer = &buffer[end + 4..],
            _ => return buffer,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn informational_responses_neither_are_nor_hide_a_rejection() {
        let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
        for (response, refuses) in [("", false), ("HTTP/1.1 ", false), ("HTTP/1.1 200", false), ("HTTP/1.1 4", true)] {
            for before in ["", early] {
                assert_eq!(is_rejection(format!("{before}{response}").as_bytes()), refuses, "{before}{response}");
            }
            assert!(!is_rejection(&early.as_bytes()[..early.len() - 1]));
        }
    }

    #[tokio::test]
    async fn writes_the_parts_of_a_large_body_in_order() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(Transport::Unix(near));
        let (first, second) = (vec![1; MAX_WRITE_BYTES + 7], vec![2; 3 * MAX_WRITE_BYTES + 5]);
        let expected = [&first[..], &second].concat();
        let reading = tokio::spawn(async move {
            let mut received = Vec::new();
            far.read_to_end(&mut received).await.unwrap();
            received
        });
        connection.write(&first, &second).await.unwrap();
        drop(connection);
        assert!(reading.await.unwrap() == expected);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_write_ends_after_a_final_response_but_not_after_early_hints() {
        for (response, is_answer) in [("HTTP/1.1 103 Early\r\n\r\n", false), ("HTTP/1.1 200 OK\r\n\r\n", true)] {
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(response.as_bytes()).await.unwrap();
            let mut connection = Connection::new(Transport::Unix(near));
            let body = vec![0; 8 * 1024 * 1024];
            let written = tokio::time::timeout(STALLED_WRITE_TIMEOUT * 3, connection.write(&body, &[])).await;
            let written = written.map(|written| written.map_err(drop));
            assert_eq!(written.map_err(drop), if is_answer { Ok(Err(())) } else { Err(()) });
            assert_eq!(&connection.buffer[..], response.as_bytes());
        }
    }
}
