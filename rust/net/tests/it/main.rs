//! Tests of the HTTP client over real connections, with the rest of the gateway left out. One binary, so that it links
//! once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

mod body;
mod dialer;
mod http1;
mod pool;
