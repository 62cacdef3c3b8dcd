//! What an operator set for this process, read once. Python decides it; nothing here changes while the process lives.

use std::path::PathBuf;

use serde::Deserialize;

use crate::{config::TargetLimits, process::secret::Secret};

#[derive(Debug, Clone, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each says yes or no to something of its own")]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The Unix socket of the control process; without it management paths answer 503 and records are dropped.
    pub control_socket: Option<PathBuf>,
    pub worker: u32,
    /// How many there are on this node.
    pub workers: u32,
    /// Where callers connect, and how long they may take to begin a request; without a port nobody looks.
    pub port: u16,
    pub header_timeout_ms: u64,
    /// Longest head of a request.
    pub header_bytes: usize,
    /// How long a connection may be kept without a request.
    pub keep_alive_ms: u64,
    /// Time to the first byte of an answer.
    pub request_timeout_ms: u64,
    pub dns_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    pub tls_timeout_ms: u64,
    /// Longest silence within an answer.
    pub idle_timeout_ms: u64,
    /// Longest that an answer may come.
    pub stream_timeout_ms: u64,
    /// A silence in a stream of events after which the caller is told that it lives; 0: never.
    pub heartbeat_ms: u64,
    /// Longest wait for a caller that does not read.
    pub write_stall_ms: u64,
    pub max_body_bytes: usize,
    /// Most bytes of bodies that are held whole, of all requests together.
    pub gathered_bytes: usize,
    /// Longest wait for the next piece of a request's body, and for all of them.
    pub body_idle_ms: u64,
    pub body_total_ms: u64,
    /// Waiting that is forgiven, and bytes that each second on top must have brought.
    pub body_grace_ms: u64,
    pub body_rate: u32,
    /// Most requests that are answered at once; what comes on top is refused.
    pub max_in_flight: usize,
    /// Most targets at the root of a config, of a conditional one, and below each of them.
    pub max_root_targets: usize,
    pub max_conditional_targets: usize,
    pub max_nested_targets: usize,
    /// Longest wait before the first retry; each next one may be twice as long.
    pub retry_backoff_ms: u64,
    /// Retries of a target in percent of its requests, and so many each second on top.
    pub retry_budget_percent: u32,
    pub retry_budget_floor: u32,
    /// Most bytes of answers that are kept for configs with a cache, and of configs that requests brought along.
    pub cache_bytes: usize,
    pub inline_config_bytes: usize,
    /// Most bytes of streams that are held or may be continued, of all and of each.
    pub recovery_bytes: usize,
    pub recovery_stream_bytes: usize,
    /// What workers and nodes share goes through there, under names that begin like this; without it each keeps its own.
    pub redis_url: Option<Secret>,
    pub redis_prefix: String,
    /// Longest time that a request waits for it, and the most bytes of one answer that is kept there.
    pub redis_wait_ms: u64,
    pub redis_answer_bytes: usize,
    pub trusted_custom_hosts: Vec<String>,
    pub header_aliases: Vec<String>,
    pub require_key: bool,
    pub block_inline_config: bool,
    pub records: bool,
    /// Most bytes of records that wait for the control process; what comes on top is dropped and counted.
    pub outbox_bytes: usize,
    pub sensitive_headers: Vec<String>,
    pub headers_to_metadata: Vec<String>,
    /// Where the pretend provider listens.
    pub mock_host: Option<String>,
    /// Speak HTTP/2 with providers that offer it.
    pub http2: bool,
    pub https_proxy: Option<Secret>,
    pub http_proxy: Option<Secret>,
    pub no_proxy: Vec<String>,
    /// A PEM file of further certificate authorities.
    pub tls_ca: Option<PathBuf>,
    pub identity: WorkloadIdentity,
}

/// As whom the machine itself is known to its cloud.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadIdentity {
    /// Stored providers and configs may call as the machine.
    pub lend: bool,
    /// A token of its own platform's, and the role that is given to who has it.
    pub aws_web_identity_token_file: Option<PathBuf>,
    pub aws_role_arn: Option<String>,
    /// Who gives that role, where it is not Amazon's service in the region.
    pub aws_sts_endpoint: Option<String>,
    /// Where a container is given keys, and what it must say for that.
    pub aws_container_url: Option<String>,
    pub aws_container_token: Option<Secret>,
    pub aws_container_token_file: Option<PathBuf>,
    /// Where an instance is.
    pub aws_metadata_url: String,
    /// Where an app or a container of Azure's is given tokens, and what it must say for that.
    pub azure_identity_url: Option<String>,
    pub azure_identity_header: Option<Secret>,
    /// Where a virtual machine is.
    pub azure_metadata_url: String,
    /// A token of its own platform's, the application for which that vouches, and who believes it.
    pub azure_federated_token_file: Option<PathBuf>,
    pub azure_tenant_id: Option<String>,
    pub azure_client_id: Option<String>,
    pub azure_authority_host: String,
    /// A token of its own platform's, who takes it for one of Google's, and who gives service accounts' own for that.
    pub google_token_file: Option<PathBuf>,
    pub google_sts_url: String,
    pub google_iam_url: String,
}

impl Default for WorkloadIdentity {
    fn default() -> Self {
        Self {
            lend: false,
            aws_web_identity_token_file: None,
            aws_role_arn: None,
            aws_sts_endpoint: None,
            aws_container_url: None,
            aws_container_token: None,
            aws_container_token_file: None,
            aws_metadata_url: "http://169.254.169.254".to_owned(),
            azure_identity_url: None,
            azure_identity_header: None,
            azure_metadata_url: "http://169.254.169.254".to_owned(),
            azure_federated_token_file: None,
            azure_tenant_id: None,
            azure_client_id: None,
            azure_authority_host: "https://login.microsoftonline.com".to_owned(),
            google_token_file: None,
            google_sts_url: "https://sts.googleapis.com/v1/token".to_owned(),
            google_iam_url: "https://iamcredentials.googleapis.com".to_owned(),
        }
    }
}

impl Settings {
    pub fn target_limits(&self) -> TargetLimits {
        TargetLimits {
            max_root: self.max_root_targets,
            max_conditional: self.max_conditional_targets,
            max_nested: self.max_nested_targets,
        }
    }

    /// Where records are taken: beside the control process's own socket.
    pub fn record_socket(&self) -> Option<PathBuf> {
        self.control_socket.as_ref().map(|path| path.with_file_name("records.sock"))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            control_socket: None,
            worker: 1,
            workers: 1,
            port: 0,
            header_timeout_ms: 10_000,
            header_bytes: 65_536,
            keep_alive_ms: 75_000,
            request_timeout_ms: 300_000,
            dns_timeout_ms: 2_000,
            connect_timeout_ms: 3_000,
            tls_timeout_ms: 5_000,
            idle_timeout_ms: 60_000,
            stream_timeout_ms: 3_600_000,
            heartbeat_ms: 15_000,
            write_stall_ms: 60_000,
            max_body_bytes: 100 * 1024 * 1024,
            gathered_bytes: 512 * 1024 * 1024,
            body_idle_ms: 10_000,
            body_total_ms: 300_000,
            body_grace_ms: 10_000,
            body_rate: 1024,
            max_in_flight: 20_000,
            max_root_targets: 100,
            max_conditional_targets: 1000,
            max_nested_targets: 50,
            retry_backoff_ms: 1_000,
            retry_budget_percent: 20,
            retry_budget_floor: 10,
            cache_bytes: 64 * 1024 * 1024,
            inline_config_bytes: 16 * 1024 * 1024,
            recovery_bytes: 64 * 1024 * 1024,
            recovery_stream_bytes: 4 * 1024 * 1024,
            redis_url: None,
            redis_prefix: "penstock:".to_owned(),
            redis_wait_ms: 50,
            redis_answer_bytes: 1024 * 1024,
            trusted_custom_hosts: Vec::new(),
            header_aliases: vec!["x-portkey-".to_owned()],
            require_key: false,
            block_inline_config: false,
            records: true,
            outbox_bytes: 64 * 1024 * 1024,
            sensitive_headers: Vec::new(),
            headers_to_metadata: Vec::new(),
            mock_host: None,
            http2: true,
            https_proxy: None,
            http_proxy: None,
            no_proxy: Vec::new(),
            tls_ca: None,
            identity: WorkloadIdentity::default(),
        }
    }
}
