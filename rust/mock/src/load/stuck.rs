//! Clients that send a request and never read the response. Their receive buffers are small, so that the server soon
//! cannot send more.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::CONNECT_TIMEOUT;
use super::options::LoadOptions;
use super::report::rounded_seconds;

const RECEIVE_BUFFER_BYTES: usize = 4096;
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(options: &LoadOptions) -> Value {
    let start = Instant::now();
    let clients: Vec<Socket> = (0..options.connections).filter_map(|_| send_request(options).ok()).collect();
    let end = start + Duration::from_secs_f64(options.seconds);
    thread::sleep(end.saturating_duration_since(Instant::now()));
    let reset = clients.iter().filter(|client| client.take_error().ok().flatten().is_some()).count();
    json!({
        "clients": options.connections, "connected": clients.len(), "failed": options.connections - clients.len(),
        "reset": reset, "seconds": rounded_seconds(start.elapsed()),
    })
}

fn send_request(options: &LoadOptions) -> io::Result<Socket> {
    let mut socket = Socket::new(Domain::for_address(options.address), Type::STREAM, None)?;
    // Set before connecting, because the TCP window is negotiated during the handshake.
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.connect_timeout(&options.address.into(), CONNECT_TIMEOUT)?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    socket.write_all(&options.request_bytes)?;
    Ok(socket)
}
