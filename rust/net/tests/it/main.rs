//! Tests of the HTTP client over real connections, without the rest of the gateway. All tests are one binary, so that
//! the crates are linked only once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

mod body;
mod dialer;
mod http1;
mod pool;
