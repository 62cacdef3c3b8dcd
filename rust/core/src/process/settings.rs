//! Operator settings of this worker process. Python determines them; they are read once and do not change while the
//! process runs.

use std::path::PathBuf;

use serde::Deserialize;

use crate::process::secret::Secret;

#[derive(Debug, Clone, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is an independent option")]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Unix socket of the control process. Without it, management paths return 503 and records are dropped.
    pub control_socket: Option<PathBuf>,
    pub worker: u32,
    /// Number of workers on this node.
    pub workers: u32,
    /// Port where clients connect, and how long a client may take to send a request head. Port 0 disables this check.
    pub port: u16,
    pub header_timeout_ms: u64,
    /// Path that a proxy keeps in front of the gateway's own paths, such as `/tools/gateway`; empty for none.
    pub base_path: String,
    /// Maximum bytes of a request head.
    pub header_bytes: usize,
    /// How long an idle connection is kept open between requests.
    pub keep_alive_ms: u64,
    /// Maximum time to the first byte of a response.
    pub request_timeout_ms: u64,
    pub dns_timeout_ms: u64,
    pub connect_timeout_ms: u64,
    pub tls_timeout_ms: u64,
    /// Maximum silence within a response.
    pub idle_timeout_ms: u64,
    /// Maximum total duration of a response.
    pub stream_timeout_ms: u64,
    /// Silence in an event stream after which the client receives a heartbeat; 0 disables heartbeats.
    pub heartbeat_ms: u64,
    /// Maximum wait for a client that does not read its response.
    pub write_stall_ms: u64,
    pub max_body_bytes: usize,
    /// Maximum bytes of buffered request bodies, over all requests together.
    pub buffered_body_bytes: usize,
    /// Maximum wait for the next chunk of a request body, and for the complete body.
    pub body_idle_ms: u64,
    pub body_total_ms: u64,
    /// Waiting time that is tolerated for a request body. Each further second must have brought at least `body_rate`
    /// bytes.
    pub body_grace_ms: u64,
    pub body_rate: u32,
    /// Maximum number of concurrent requests; further requests are rejected.
    pub max_in_flight: usize,
    /// Maximum number of targets at the root of a config, in a conditional root, and below each target.
    pub max_root_targets: usize,
    pub max_conditional_targets: usize,
    pub max_nested_targets: usize,
    /// Maximum wait before the first retry; the limit doubles with each further retry.
    pub retry_backoff_ms: u64,
    /// Retry budget of a target: a percentage of its requests, plus a fixed number per second.
    pub retry_budget_percent: u32,
    pub retry_budget_min: u32,
    /// Maximum bytes of cached responses, and of compiled inline configs.
    pub cache_bytes: usize,
    pub inline_config_bytes: usize,
    /// Maximum bytes of all streams that are buffered or may be continued.
    pub recovery_bytes: usize,
    /// Maximum bytes of one such stream.
    pub recovery_stream_bytes: usize,
    /// Redis for state that workers and nodes share, and the prefix of its keys. Without it, each worker has its own
    /// state.
    pub redis_url: Option<Secret>,
    pub redis_prefix: String,
    /// Maximum time that a request waits for Redis, and the maximum bytes of one response cached there.
    pub redis_wait_ms: u64,
    pub redis_answer_bytes: usize,
    pub trusted_custom_hosts: Vec<String>,
    pub header_aliases: Vec<String>,
    pub require_key: bool,
    pub block_inline_config: bool,
    pub records: bool,
    /// Maximum bytes of records that wait for the control process; further records are dropped and counted.
    pub outbox_bytes: usize,
    /// Folder in which each worker has a folder for its spool. Without it, records are sent to the control process.
    pub spool_path: Option<String>,
    /// Folder of the counters of limits, which all workers of the node share. Without it each worker counts alone.
    pub limits_path: Option<String>,
    /// Maximum bytes of the spool folder. Above 90 percent, bodies are not stored.
    pub spool_bytes: u64,
    /// True to record bodies, each up to `record_body_bytes`.
    pub record_bodies: bool,
    pub record_body_bytes: usize,
    /// True to write records to the disk before the client has the complete response.
    pub sync_records: bool,
    /// True to record the clients' network addresses.
    pub record_peers: bool,
    pub sensitive_headers: Vec<String>,
    pub headers_to_metadata: Vec<String>,
    /// Address where the mock provider listens.
    pub mock_host: Option<String>,
    /// True to use HTTP/2 with providers that offer it.
    pub http2: bool,
    pub https_proxy: Option<Secret>,
    pub http_proxy: Option<Secret>,
    pub no_proxy: Vec<String>,
    /// PEM file with additional certificate authorities.
    pub tls_ca: Option<PathBuf>,
    pub identity: WorkloadIdentity,
}

/// Workload identity of the machine at its cloud provider.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadIdentity {
    /// True if stored providers and configs may authenticate as the machine.
    pub allow_provider_use: bool,
    /// File with an OIDC token of the platform, and the AWS role that is assumed with it.
    pub aws_web_identity_token_file: Option<PathBuf>,
    pub aws_role_arn: Option<String>,
    /// STS endpoint that issues credentials for that role, if it is not Amazon's regional endpoint.
    pub aws_sts_endpoint: Option<String>,
    /// AWS endpoint for container credentials, and the authorization token that it requires (as a value or in a file).
    pub aws_container_url: Option<String>,
    pub aws_container_token: Option<Secret>,
    pub aws_container_token_file: Option<PathBuf>,
    /// Address of the AWS instance metadata service.
    pub aws_metadata_url: String,
    /// Azure endpoint for tokens of an app or container, and the header value that it requires.
    pub azure_identity_url: Option<String>,
    pub azure_identity_header: Option<Secret>,
    /// Address of the Azure instance metadata service of a virtual machine.
    pub azure_metadata_url: String,
    /// File with an OIDC token of the platform, the Entra tenant and application that trust it, and the authority that
    /// exchanges it.
    pub azure_federated_token_file: Option<PathBuf>,
    pub azure_tenant_id: Option<String>,
    pub azure_client_id: Option<String>,
    pub azure_authority_host: String,
    /// File with an OIDC token of the platform, the Google STS that exchanges it, and the IAM API that issues service
    /// account tokens.
    pub google_token_file: Option<PathBuf>,
    pub google_sts_url: String,
    pub google_iam_url: String,
}

impl Default for WorkloadIdentity {
    fn default() -> Self {
        Self {
            allow_provider_use: false,
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
}

impl Default for Settings {
    #[allow(clippy::too_many_lines, reason = "it has one line for each setting")]
    fn default() -> Self {
        Self {
            control_socket: None,
            worker: 1,
            workers: 1,
            port: 0,
            header_timeout_ms: 10_000,
            base_path: String::new(),
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
            buffered_body_bytes: 512 * 1024 * 1024,
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
            retry_budget_min: 10,
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
            spool_path: None,
            limits_path: None,
            spool_bytes: 10 * 1024 * 1024 * 1024,
            record_bodies: true,
            record_body_bytes: 1024 * 1024,
            sync_records: false,
            record_peers: false,
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

/// Maximum numbers of targets in a config.
#[derive(Debug, Clone, Copy)]
pub struct TargetLimits {
    pub max_root: usize,
    /// At the root of a conditional strategy.
    pub max_conditional: usize,
    /// Below each target of the root.
    pub max_nested: usize,
}

impl Default for TargetLimits {
    fn default() -> Self {
        Self { max_root: 100, max_conditional: 1000, max_nested: 50 }
    }
}
