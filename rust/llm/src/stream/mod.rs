//! Response streams: decoding of SSE and AWS event streams, usage metering, and resuming of broken streams. Performs no
//! I/O.

pub mod aws_event_stream;
mod choices;
pub mod deltas;
pub mod frame_meter;
pub mod include_usage;
pub mod item_meter;
pub mod meter;
pub mod opening;
pub mod session;
pub mod skim;
pub mod splice;
pub mod sse;
pub mod transcript;
