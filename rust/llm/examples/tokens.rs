//! Token counter for comparison with other tokenizers. `tokens vocabulary ENCODING` prints the tokens in hexadecimal,
//! one per line. `tokens count ENCODING` reads JSON strings, one per line, and prints the token count of each and the
//! nanoseconds that it took.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Instant,
};

use penstock_llm::tokens::{Encoding, count_text};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["vocabulary", name] => print_vocabulary(name),
        ["count", name] => Encoding::from_name(name).ok_or_else(unknown_encoding_error).and_then(count_lines),
        _ => Err(io::Error::other("usage: tokens vocabulary|count ENCODING")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn print_vocabulary(name: &str) -> io::Result<()> {
    let vocabulary = tiktoken::get_encoding(name).ok_or_else(unknown_encoding_error)?;
    let mut output = io::BufWriter::new(io::stdout());
    for rank in 0..(vocabulary.vocab_size() + vocabulary.num_special_tokens()) as u32 {
        for byte in vocabulary.decode(&[rank]) {
            write!(output, "{byte:02x}")?;
        }
        writeln!(output)?;
    }
    output.flush()
}

fn count_lines(encoding: Encoding) -> io::Result<()> {
    // Warm-up: the first count unpacks the vocabulary, and the first count of a long word builds its table.
    count_text(encoding, &"a".repeat(1000));
    for line in io::stdin().lines() {
        let text: String = serde_json::from_str(&line?)?;
        let started_at = Instant::now();
        let tokens = count_text(encoding, &text);
        let elapsed = started_at.elapsed().as_nanos();
        writeln!(io::stdout(), "{tokens} {elapsed}")?;
    }
    Ok(())
}

fn unknown_encoding_error() -> io::Error {
    io::Error::other("unknown encoding")
}
