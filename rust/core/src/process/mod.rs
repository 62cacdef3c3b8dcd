//! The worker process: settings, metrics, deadlines, connections.

pub mod background_threads;
pub mod edge;
pub mod metrics;
pub mod net_settings;
pub mod preempt;
pub mod secret;
pub mod settings;
