//! Load client executable. Runs one kind of load and prints the result as a JSON object.

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use penstock_mock::load::{LoadOptions, run};

fn main() -> ExitCode {
    let report = LoadOptions::parse(std::env::args().skip(1))
        .and_then(|options| run(&options).map_err(|error| error.to_string()));
    let written = match &report {
        Ok(report) => writeln!(stdout(), "{report}"),
        Err(problem) => writeln!(stderr(), "{problem}"),
    };
    if report.is_ok() && written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
