//! The worker process: settings, metrics, deadlines, connections.

pub mod coarse_timer;
pub mod edge;
pub mod memory_budget;
pub mod metrics;
pub mod preempt;
pub mod secret;
pub mod settings;
