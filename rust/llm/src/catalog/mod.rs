//! Provider catalogue: the providers, their rows of properties, and the traits for what they do differently.

pub(crate) mod anthropic;
pub(crate) mod aws;
pub(crate) mod aws_hosted;
pub(crate) mod azure_ai;
pub(crate) mod azure_openai;
pub(crate) mod batch_jobs;
pub(crate) mod bedrock;
pub(crate) mod cohere;
pub(crate) mod customer_hosts;
pub(crate) mod entra;
pub(crate) mod external_account;
pub(crate) mod fireworks;
pub(crate) mod google;
pub(crate) mod grant;
pub(crate) mod model_lists;
pub(crate) mod openai;
pub(crate) mod openai_compatible;
pub(crate) mod operation_groups;
pub(crate) mod options;
pub(crate) mod oracle;
pub(crate) mod own_endpoint;
pub(crate) mod param_map;
pub(crate) mod path_info;
pub(crate) mod path_segment;
pub(crate) mod predibase;
pub(crate) mod prefill;
pub(crate) mod provider;
pub(crate) mod registry;
pub(crate) mod row;
pub(crate) mod signing_keys;
pub(crate) mod single_operation;
pub(crate) mod templated;
pub(crate) mod vertex_ai;
pub(crate) mod vertex_publishers;

pub use aws::{is_sts_url, sts_endpoint};
pub use customer_hosts::{is_azure_blob_host, is_cloud_host};
pub use grant::{
    AssumeRole, AwsCredentials, AwsMachineIdentity, ClientAssertion, ExternalAccount, FederatedApplication, Grant,
    SubjectTokenSource,
};
pub use options::{BACKING_MODEL, OptionField, Options, ValueFormat};
pub use param_map::ParamRules;
pub use path_info::{GooglePathOptions, PathInfo, PathOptions};
pub use prefill::PrefillSupport;
pub use provider::{ModelLookup, Provider, ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels};
pub use registry::{all_providers, find_option, find_provider, providers_json};
pub use row::{Credential, ProviderRow};
pub use signing_keys::{AmazonKeys, OracleKey, SigningKeys};
