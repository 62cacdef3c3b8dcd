//! What an operator set for this process, read once. Python decides it; nothing here changes while the process lives.

use std::path::PathBuf;

use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The Unix socket of the control process; without it management paths answer 503 and records are dropped.
    pub control_socket: Option<PathBuf>,
    pub worker: u32,
    /// Time to the first byte of an answer.
    pub request_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    /// Longest silence within an answer.
    pub idle_timeout_ms: u64,
    /// Longest wait for a caller that does not read.
    pub write_stall_ms: u64,
    pub max_body_bytes: usize,
    pub max_in_flight: usize,
    pub trusted_custom_hosts: Vec<String>,
    pub header_aliases: Vec<String>,
    pub require_key: bool,
    pub block_inline_config: bool,
    pub records: bool,
    /// Most bytes of records that wait for the control process; what comes on top is dropped and counted.
    pub outbox_bytes: usize,
    pub sensitive_headers: Vec<String>,
    /// Where the pretend provider listens.
    pub mock_host: Option<String>,
    /// A PEM file of further certificate authorities.
    pub tls_ca: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            control_socket: None,
            worker: 1,
            request_timeout_ms: 300_000,
            connect_timeout_ms: 3_000,
            idle_timeout_ms: 60_000,
            write_stall_ms: 60_000,
            max_body_bytes: 100 * 1024 * 1024,
            max_in_flight: 20_000,
            trusted_custom_hosts: Vec::new(),
            header_aliases: vec!["x-portkey-".to_owned()],
            require_key: false,
            block_inline_config: false,
            records: true,
            outbox_bytes: 64 * 1024 * 1024,
            sensitive_headers: Vec::new(),
            mock_host: None,
            tls_ca: None,
        }
    }
}
