//! Load client: five kinds of load, exact counts, and the results as one JSON object.

mod events;
mod histogram;
mod options;
mod rate;
mod reply;
mod report;
mod stream;
mod stuck;
mod whole;

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::{Builder, LocalOptions};

pub use options::{LoadOptions, Mode, USAGE};

/// Time after the end of a run within which pending responses must finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the load and returns its report.
pub fn run(options: &LoadOptions) -> io::Result<Value> {
    match options.mode {
        Mode::Rate => rate::run(options),
        Mode::Stuck => Ok(stuck::run(options)),
        Mode::Whole | Mode::Stream | Mode::Hold => {
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
            Ok(runtime.block_on(async {
                if options.mode == Mode::Whole { whole::run(options).await } else { stream::run(options).await }
            }))
        }
    }
}
