//! Avro decoder for comparison with other readers. `avro FILE ROUNDS` prints the records of a file as JSON lines. Then it
//! prints to the standard error stream the nanoseconds that each round took; each round decodes the whole file again.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Instant,
};

use penstock_llm::avro::AvroDecoder;

/// Size of the chunks in which a file arrives.
const CHUNK_BYTES: usize = 64 * 1024;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [file, rounds] => run_rounds(file, rounds),
        _ => Err(io::Error::other("usage: avro FILE ROUNDS")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn run_rounds(file: &str, rounds: &str) -> io::Result<()> {
    let rounds: u32 = rounds.parse().map_err(io::Error::other)?;
    let bytes = std::fs::read(file)?;
    let mut output = io::BufWriter::new(io::stdout());
    decode(&bytes, |lines| output.write_all(lines))?;
    output.flush()?;
    for _ in 0..rounds {
        let started_at = Instant::now();
        decode(&bytes, |_| Ok(()))?;
        writeln!(io::stderr(), "{}", started_at.elapsed().as_nanos())?;
    }
    Ok(())
}

/// Decodes a file chunk by chunk, as the engine does.
fn decode(bytes: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut decoder = AvroDecoder::default();
    for chunk in bytes.chunks(CHUNK_BYTES) {
        write(&decoder.decode_chunk(chunk).map_err(|_| io::Error::other("the file is no valid Avro"))?)?;
    }
    decoder.check_complete().map_err(|_| io::Error::other("the file is truncated"))
}
