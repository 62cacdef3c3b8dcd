//! State that the requests of a worker share: the published snapshot, caches, circuit breakers.

pub mod shared;
pub mod snapshot;
