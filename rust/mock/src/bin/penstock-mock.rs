//! The pretend provider as a program: `penstock-mock --host 127.0.0.1 --port 8788 [--no-ledger]`.

use std::error::Error;
use std::io::{Write, stdout};
use std::net::{IpAddr, SocketAddr};

use penstock_mock::{Options, serve};

const USAGE: &str = "usage: penstock-mock [--host ADDRESS] [--port PORT (0 = any)] [--no-ledger]";

fn main() -> Result<(), Box<dyn Error>> {
    let options = read(std::env::args().skip(1))?;
    serve(&options, |address| {
        let mut out = stdout().lock();
        writeln!(out, "listening on http://{address}")?;
        out.flush()
    })?;
    Ok(())
}

fn read(mut args: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let (mut host, mut port, mut ledger) = (IpAddr::from([127, 0, 0, 1]), 8788, true);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--host" => host = args.next().ok_or(USAGE)?.parse()?,
            "--port" => port = args.next().ok_or(USAGE)?.parse()?,
            "--no-ledger" => ledger = false,
            other => return Err(format!("unknown argument \"{other}\"; {USAGE}").into()),
        }
    }
    Ok(Options {
        address: SocketAddr::new(host, port),
        ledger,
    })
}
