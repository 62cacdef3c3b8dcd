//! The worker process: settings, metrics, deadlines, connections.

pub mod coarse_timer;
pub mod deadline;
pub mod edge;
pub mod metrics;
pub mod preempt;
pub mod secret;
pub mod settings;
