//! Mock provider executable: `penstock-mock --host 127.0.0.1 --port 8788`.

use std::error::Error;
use std::io::{Write, stdout};
use std::net::SocketAddr;

use penstock_mock::{ServerOptions, serve};

const USAGE: &str = "usage: penstock-mock [--host ADDRESS] [--port PORT (0 = any)] [--no-ledger] [--send-buffer BYTES]";

fn main() -> Result<(), Box<dyn Error>> {
    let options = parse_args(std::env::args().skip(1))?;
    serve(&options, |address| {
        let mut out = stdout().lock();
        writeln!(out, "listening on http://{address}")?;
        out.flush()
    })?;
    Ok(())
}

fn parse_args(mut args: impl Iterator<Item = String>) -> Result<ServerOptions, Box<dyn Error>> {
    let mut options = ServerOptions { address: SocketAddr::from(([127, 0, 0, 1], 8788)), ..ServerOptions::default() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--host" => options.address.set_ip(args.next().ok_or(USAGE)?.parse()?),
            "--port" => options.address.set_port(args.next().ok_or(USAGE)?.parse()?),
            "--no-ledger" => options.ledger_enabled = false,
            "--send-buffer" => options.send_buffer_bytes = Some(args.next().ok_or(USAGE)?.parse()?),
            other => return Err(format!("unknown argument \"{other}\"; {USAGE}").into()),
        }
    }
    Ok(options)
}
