//! AWS options shared by Amazon's services: region, signing keys and assumed roles.

use crate::catalog::{
    grant::{AssumeRole, AwsCredentials, AwsMachineIdentity, Grant},
    options::{OptionField, Options, gateway_option},
    path_segment,
    signing_keys::{AmazonKeys, SigningKeys},
};

pub(crate) const OPTIONS: [OptionField; 9] = [
    gateway_option("aws_region", "aws-region"),
    gateway_option("aws_access_key_id", "aws-access-key-id"),
    gateway_option("aws_secret_access_key", "aws-secret-access-key"),
    gateway_option("aws_session_token", "aws-session-token"),
    gateway_option("aws_auth_type", "aws-auth-type"),
    gateway_option("aws_role_arn", "aws-role-arn"),
    gateway_option("aws_external_id", "aws-external-id"),
    gateway_option("aws_role_session_name", "aws-role-session-name"),
    gateway_option("aws_sts_endpoint", "aws-sts-endpoint"),
];

/// Session name for an assumed role if no option sets one.
const DEFAULT_SESSION_NAME: &str = "penstock";

pub(crate) fn region_from_options(options: &Options) -> Result<&str, String> {
    let region = options.get("aws_region").ok_or("no region: send x-gateway-aws-region")?;
    if path_segment::is_host_label(region) {
        Ok(region)
    } else {
        Err("aws_region must be letters, digits and dashes".into())
    }
}

/// Returns the URL of the AWS STS endpoint of a region, which issues temporary keys.
pub fn sts_endpoint(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://sts.{region}.{domain}")
}

/// Returns true if a URL is an AWS STS endpoint: regional, global, or a VPC endpoint. The match is exact, because
/// customers own other host names below the same domain.
pub fn is_sts_url(url: &str) -> bool {
    let Some(host) = url.strip_prefix("https://").map(|rest| rest.trim_end_matches('/')) else { return false };
    let Some(below) = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"].iter().find_map(|end| host.strip_suffix(end))
    else {
        return false;
    };
    let labels: Vec<_> = below.split('.').collect();
    let is_plain = labels.iter().all(|label| path_segment::is_host_label(label));
    let is_service = |label: &str| matches!(label, "sts" | "sts-fips");
    is_plain
        && match labels.as_slice() {
            [service] => is_service(service),
            [service, region] | [_, service, region, "vpce"] => is_service(service) && is_region_name(region),
            _ => false,
        }
}

/// Returns true for names such as `us-gov-west-1`: two letters first, a number last.
fn is_region_name(label: &str) -> bool {
    let parts: Vec<_> = label.split('-').collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    parts.len() > 2 && is_number && first.len() == 2 && first.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Source of the keys that sign a request.
enum KeySource {
    /// Keys from the options, if there are any.
    Configured,
    /// Temporary keys of an assumed role.
    AssumedRole,
    /// Keys of the machine that the gateway runs on.
    Machine,
}

/// Returns the keys among the options that sign requests. `None` if there are none, or if they only serve to assume a
/// role.
pub(crate) fn signature_from_options<'o>(
    service: &'static str,
    options: &'o Options,
) -> Result<Option<SigningKeys<'o>>, String> {
    let (KeySource::Configured, Some((id, secret))) = (key_source(options)?, static_keys(options)?) else {
        return Ok(None);
    };
    let token = options.get("aws_session_token");
    Ok(Some(SigningKeys::Amazon(AmazonKeys {
        service,
        region: region_from_options(options)?,
        access_key_id: id,
        secret_access_key: secret,
        session_token: token,
    })))
}

/// Returns the grant that fetches temporary keys; `None` if the configured keys sign requests.
pub(crate) fn grant_from_options(service: &'static str, options: &Options) -> Result<Option<Grant>, String> {
    let signer = key_source(options)?;
    if matches!(signer, KeySource::Configured) {
        return Ok(None);
    }
    let text = |key| options.get(key).map(ToOwned::to_owned);
    let region = region_from_options(options)?.to_owned();
    let endpoint = text("aws_sts_endpoint").unwrap_or_else(|| sts_endpoint(&region));
    if matches!(signer, KeySource::Machine) {
        return Ok(Some(Grant::AwsMachineIdentity(AwsMachineIdentity { region, endpoint, service })));
    }
    let keys = static_keys(options)?.map(|(id, secret)| AwsCredentials {
        access_key_id: id.to_owned(),
        secret_access_key: secret.to_owned(),
        session_token: text("aws_session_token"),
    });
    Ok(Some(Grant::AssumeRole(Box::new(AssumeRole {
        arn: text("aws_role_arn").ok_or("no role: send x-gateway-aws-role-arn")?,
        external_id: text("aws_external_id"),
        session_name: text("aws_role_session_name").unwrap_or_else(|| DEFAULT_SESSION_NAME.to_owned()),
        sts_endpoint: endpoint,
        region,
        source_credentials: keys,
        service,
    }))))
}

fn key_source(options: &Options) -> Result<KeySource, String> {
    match options.get("aws_auth_type") {
        Some("assumedRole") => Ok(KeySource::AssumedRole),
        Some("serviceRole") => Ok(KeySource::Machine),
        None if options.get("aws_role_arn").is_some() => Ok(KeySource::AssumedRole),
        None | Some("accessKey" | "apiKey") => Ok(KeySource::Configured),
        Some(other) => {
            Err(format!("aws_auth_type may be accessKey, apiKey, assumedRole or serviceRole, not `{other}`"))
        }
    }
}

fn static_keys(options: &Options) -> Result<Option<(&str, &str)>, String> {
    match (options.get("aws_access_key_id"), options.get("aws_secret_access_key")) {
        (None, None) => Ok(None),
        (Some(id), Some(secret)) => Ok(Some((id, secret))),
        _ => Err("aws_access_key_id and aws_secret_access_key must be set together".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_options(pairs: &[(&str, &str)]) -> Options {
        Options::from_pairs(&OPTIONS, pairs)
    }

    const ID: (&str, &str) = ("aws_access_key_id", "AKID");
    const SECRET: (&str, &str) = ("aws_secret_access_key", "s");
    const REGION: (&str, &str) = ("aws_region", "us-east-1");
    const ROLE: (&str, &str) = ("aws_role_arn", "arn:aws:iam::1:role/r");

    #[test]
    fn requires_both_keys_and_a_region() {
        let signed = |pairs: &[(&str, &str)]| {
            signature_from_options("s", &build_options(pairs)).map(|signature| signature.is_some())
        };
        assert!(signed(&[ID]).is_err() && signed(&[ID, SECRET]).is_err());
        assert_eq!(signed(&[]), Ok(false));
        assert_eq!(signed(&[ID, SECRET, REGION]), Ok(true));
        assert!(region_from_options(&build_options(&[("aws_region", "evil.example/")])).is_err());
    }

    #[test]
    fn recognises_sts_urls_by_the_exact_host() {
        for url in [
            "https://sts.amazonaws.com",
            "https://sts.eu-west-1.amazonaws.com/",
            "https://sts-fips.us-east-1.amazonaws.com",
            "https://sts.cn-north-1.amazonaws.com.cn",
            "https://sts.us-east-1.api.aws",
            "https://vpce-0a-1b.sts.eu-west-1.vpce.amazonaws.com",
        ] {
            assert!(is_sts_url(url), "{url}");
        }
        for other in [
            "http://sts.amazonaws.com",
            "https://evil.example",
            "https://sts.amazonaws.com.evil.example",
            "https://sts.s3.eu-west-1.amazonaws.com",
            "https://sts.s3.amazonaws.com",
            "https://sts.s3-us-west-2.amazonaws.com",
            "https://a1.execute-api.us-east-1.amazonaws.com",
            "https://a1.sts.eu-west-1.elb.amazonaws.com",
            "https://evil.example/.amazonaws.com",
            "https://u@sts.amazonaws.com",
            "https://sts.amazonaws.com:8443",
        ] {
            assert!(!is_sts_url(other), "{other}");
        }
    }

    #[test]
    fn keys_that_assume_a_role_do_not_sign_requests() {
        let options = build_options(&[ID, SECRET, REGION, ROLE, ("aws_external_id", "x")]);
        assert_eq!(signature_from_options("s", &options).unwrap(), None);
        let Some(Grant::AssumeRole(role)) = grant_from_options("s", &options).unwrap() else { panic!("a role") };
        assert_eq!(
            (role.sts_endpoint.as_str(), role.external_id.as_deref()),
            ("https://sts.us-east-1.amazonaws.com", Some("x"))
        );
        assert!(!Grant::AssumeRole(role).is_machine_identity());
        assert!(
            grant_from_options("s", &build_options(&[("aws_auth_type", "assumedRole")])).unwrap_err().contains("no ")
        );
        assert!(
            grant_from_options("s", &build_options(&[("aws_auth_type", "other")])).unwrap_err().contains("serviceRole")
        );
    }

    #[test]
    fn machine_keys_assume_the_role_or_sign_if_no_keys_are_configured() {
        let Some(grant) = grant_from_options("s", &build_options(&[REGION, ROLE])).unwrap() else { panic!("a role") };
        assert!(grant.is_machine_identity());
        let options = build_options(&[REGION, ("aws_auth_type", "serviceRole"), ID, SECRET]);
        assert_eq!(signature_from_options("s", &options).unwrap(), None);
        let Some(machine_grant) = super::grant_from_options("s", &options).unwrap() else { panic!("the machine") };
        assert_eq!(
            (machine_grant.is_machine_identity(), machine_grant.aws_signing_scope()),
            (true, Some(("s", "us-east-1")))
        );
    }
}
