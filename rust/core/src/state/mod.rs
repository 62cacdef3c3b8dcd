//! What the requests of a worker share: the published snapshot, caches, circuit breakers.

pub mod gateway_state;
pub mod shared;
pub mod snapshot;
