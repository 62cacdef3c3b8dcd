//! Host names that only a cloud provider assigns: hosts that contain a customer's name, and token endpoints. Customers
//! cannot register arbitrary names there, so the gateway trusts such hosts more than other custom hosts.

use crate::catalog::{aws, templated};

/// Host patterns; `{}` stands for the customer's part. At the beginning of a pattern, it matches any text. Elsewhere it
/// matches one label, because customers can name other resources below the same domain.
const CLOUD_HOST_PATTERNS: &[&str] = &[
    "bedrock.{}.amazonaws.com",
    "bedrock-runtime.{}.amazonaws.com",
    "runtime.sagemaker.{}.amazonaws.com",
    "s3.{}.amazonaws.com",
    "bedrock-mantle.{}.api.aws",
    "aws-external-anthropic.{}.api.aws",
    "{}.openai.azure.com",
    "{}.services.ai.azure.com",
    "{}.cognitiveservices.azure.com",
    "{}.models.ai.azure.com",
    "{}.inference.ml.azure.com",
    "login.microsoftonline.com",
    "login.microsoftonline.us",
    "login.partner.microsoftonline.cn",
    "aiplatform.googleapis.com",
    "{}-aiplatform.googleapis.com",
    "aiplatform.{}.rep.googleapis.com",
    "discoveryengine.googleapis.com",
    "storage.googleapis.com",
    "oauth2.googleapis.com",
];

/// Hosts of Azure Blob Storage in each Azure cloud.
const AZURE_BLOB_HOST_PATTERNS: &[&str] =
    &["{}.blob.core.windows.net", "{}.blob.core.usgovcloudapi.net", "{}.blob.core.chinacloudapi.cn"];

/// Returns true if the host is an Azure Blob Storage account.
pub fn is_azure_blob_host(host: &str) -> bool {
    AZURE_BLOB_HOST_PATTERNS.iter().any(|pattern| matches_host_pattern(host, pattern))
}

/// Returns true if only a cloud provider can have assigned this host name.
pub fn is_cloud_host(host: &str) -> bool {
    CLOUD_HOST_PATTERNS
        .iter()
        .copied()
        .chain(templated::host_templates())
        .any(|pattern| matches_host_pattern(host, pattern))
        || is_azure_blob_host(host)
        || aws::is_sts_url(&format!("https://{host}"))
}

fn matches_host_pattern(host: &str, pattern: &str) -> bool {
    let Some((before, after)) = pattern.split_once("{}") else { return host == pattern };
    let label = host.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    label.is_some_and(|label| !label.is_empty() && (before.is_empty() || !label.contains('.')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::{all_providers, options::Options},
        operation::Operation,
    };

    fn host_of_url(url: &str) -> &str {
        url.split('/').nth(2).unwrap()
    }

    #[test]
    fn every_base_url_from_options_is_a_cloud_host() {
        let pairs = [
            ("aws_region", "eu-west-1"),
            ("resource_name", "my-res"),
            ("azure_endpoint_name", "my-res"),
            ("azure_deployment_name", "d"),
            ("azure_region", "eastus2"),
            ("vertex_project_id", "p"),
            ("byteplus_region", "ap-southeast"),
            ("snowflake_account", "my.eu-central-1"),
            ("databricks_workspace", "dbc-1"),
            ("oracle_region", "eu-frankfurt-1"),
            ("oracle_compartment_id", "c"),
            ("workers_ai_account_id", "a"),
        ];
        let regions = ["us-east5", "us", "global"].map(|region| [("vertex_region", region)]);
        let kinds = [&[][..], &[("azure_deployment_type", "serverless")], &[("azure_deployment_type", "managed")]];
        let placed = all_providers().filter(|provider| provider.row().base_url.is_empty());
        let mut checked = 0;
        for provider in placed {
            for (region, kind) in regions.iter().flat_map(|region| kinds.map(|kind| (region, kind))) {
                let options = Options::from_pairs(provider.row().options, &[&pairs, &region[..], kind].concat());
                for operation in [Operation::ChatComplete, Operation::Models, Operation::Rerank, Operation::UploadFile]
                {
                    let Some(url) = provider.resolve_base_url(operation, &options).unwrap() else { continue };
                    assert!(is_cloud_host(host_of_url(&url)), "{url}");
                    checked += 1;
                }
            }
        }
        assert!(checked > 300, "{checked}");
    }

    #[test]
    fn recognises_token_endpoints_and_rejects_customer_named_hosts() {
        for host in ["sts.eu-west-1.amazonaws.com", "sts.cn-north-1.amazonaws.com.cn", "oauth2.googleapis.com"] {
            assert!(is_cloud_host(host), "{host}");
        }
        assert!(is_cloud_host("acct.blob.core.windows.net"));
        for host in [
            "blob.core.windows.net",
            "acct.blob.core.windows.net.evil.example",
            "internal-mine-1.eu-west-1.elb.amazonaws.com",
            "bedrock.mine.elb.amazonaws.com",
            "evil.p.googleapis.com",
            "mine.azurewebsites.net",
            ".openai.azure.com",
            "openai.azure.com.evil.example",
            "bedrock..amazonaws.com",
            "api.openai.com",
        ] {
            assert!(!is_cloud_host(host), "{host}");
        }
    }
}
