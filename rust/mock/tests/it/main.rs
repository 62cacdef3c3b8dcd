//! Tests of the mock provider: every response shape and fault, over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod http_client;

mod complete_responses;
mod faults_before;
mod faults_in_content;
mod faults_within;
mod ledger;
mod load;
mod streams;
mod vendors;
