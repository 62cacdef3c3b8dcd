//! Clients that send a request and never read: with a small receive buffer, so that the sender soon feels it.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::CONNECT_LIMIT;
use super::options::Options;
use super::report::seconds;

const RECEIVE_BUFFER: usize = 4096;
const SEND_LIMIT: Duration = Duration::from_secs(10);

pub fn run(options: &Options) -> Value {
    let start = Instant::now();
    let clients: Vec<Socket> = (0..options.connections).filter_map(|_| ask(options).ok()).collect();
    let end = start + Duration::from_secs_f64(options.seconds);
    thread::sleep(end.saturating_duration_since(Instant::now()));
    let reset = clients.iter().filter(|client| client.take_error().ok().flatten().is_some()).count();
    json!({
        "clients": options.connections, "connected": clients.len(), "failed": options.connections - clients.len(),
        "reset": reset, "seconds": seconds(start.elapsed()),
    })
}

fn ask(options: &Options) -> io::Result<Socket> {
    let mut socket = Socket::new(Domain::for_address(options.address), Type::STREAM, None)?;
    // Before connecting: the window is agreed on then.
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.connect_timeout(&options.address.into(), CONNECT_LIMIT)?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    socket.write_all(&options.request)?;
    Ok(socket)
}
