//! What Amazon's services have in common: the region, the keys that requests are signed with, roles that are taken on.

use super::{AmazonKeys, Grant, Keys, Known, Machine, Options, Role, Signature, options::known};
use crate::catalog::path_segment;

pub(crate) const OPTIONS: [Known; 9] = [
    known("aws_region", "aws-region"),
    known("aws_access_key_id", "aws-access-key-id"),
    known("aws_secret_access_key", "aws-secret-access-key"),
    known("aws_session_token", "aws-session-token"),
    known("aws_auth_type", "aws-auth-type"),
    known("aws_role_arn", "aws-role-arn"),
    known("aws_external_id", "aws-external-id"),
    known("aws_role_session_name", "aws-role-session-name"),
    known("aws_sts_endpoint", "aws-sts-endpoint"),
];

/// As whom a role is taken on, where nobody says.
const SESSION_NAME: &str = "penstock";

pub(crate) fn region(options: &Options) -> Result<&str, String> {
    let region = options.get("aws_region").ok_or("no region: send x-gateway-aws-region")?;
    if path_segment::is_label(region) {
        Ok(region)
    } else {
        Err("aws_region must be letters, digits and dashes".into())
    }
}

/// Who gives roles in a region.
pub fn sts(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://sts.{region}.{domain}")
}

/// Whether a URL is of Amazon's service that gives roles: of a region, of all, or as it is reached within a private network.
/// Customers have names of their own below the same domain.
pub fn is_sts(url: &str) -> bool {
    let Some(host) = url.strip_prefix("https://").map(|rest| rest.trim_end_matches('/')) else { return false };
    let Some(below) = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"].iter().find_map(|end| host.strip_suffix(end))
    else {
        return false;
    };
    let labels: Vec<_> = below.split('.').collect();
    let is_plain = labels.iter().all(|label| path_segment::is_label(label));
    let is_service = |label: &str| matches!(label, "sts" | "sts-fips");
    is_plain
        && match labels.as_slice() {
            [service] => is_service(service),
            [service, region] | [_, service, region, "vpce"] => is_service(service) && is_region(region),
            _ => false,
        }
}

/// Such as `us-gov-west-1`: two letters first, a number last.
fn is_region(label: &str) -> bool {
    let parts: Vec<_> = label.split('-').collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    parts.len() > 2 && is_number && first.len() == 2 && first.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Whose keys sign a request.
enum Signer {
    /// Those that are given, if there are any.
    Given,
    /// Those of a role.
    Role,
    /// Those of the machine that this runs on.
    Machine,
}

/// The keys among the options. Those that may take a role on sign nothing else.
pub(crate) fn signature<'o>(service: &'static str, options: &'o Options) -> Result<Option<Signature<'o>>, String> {
    let (Signer::Given, Some((id, secret))) = (signer(options)?, keys(options)?) else { return Ok(None) };
    let token = options.get("aws_session_token");
    Ok(Some(Signature::Amazon(AmazonKeys { service, region: region(options)?, id, secret, token })))
}

/// Who is asked for keys.
pub(crate) fn grant(service: &'static str, options: &Options) -> Result<Option<Grant>, String> {
    let signer = signer(options)?;
    if matches!(signer, Signer::Given) {
        return Ok(None);
    }
    let text = |key| options.get(key).map(ToOwned::to_owned);
    let region = region(options)?.to_owned();
    let endpoint = text("aws_sts_endpoint").unwrap_or_else(|| sts(&region));
    if matches!(signer, Signer::Machine) {
        return Ok(Some(Grant::Machine(Machine { region, endpoint, service })));
    }
    let keys = keys(options)?.map(|(id, secret)| Keys {
        id: id.to_owned(),
        secret: secret.to_owned(),
        token: text("aws_session_token"),
    });
    Ok(Some(Grant::Role(Box::new(Role {
        arn: text("aws_role_arn").ok_or("no role: send x-gateway-aws-role-arn")?,
        external_id: text("aws_external_id"),
        session_name: text("aws_role_session_name").unwrap_or_else(|| SESSION_NAME.to_owned()),
        endpoint,
        region,
        keys,
        service,
    }))))
}

fn signer(options: &Options) -> Result<Signer, String> {
    match options.get("aws_auth_type") {
        Some("assumedRole") => Ok(Signer::Role),
        Some("serviceRole") => Ok(Signer::Machine),
        None if options.get("aws_role_arn").is_some() => Ok(Signer::Role),
        None | Some("accessKey" | "apiKey") => Ok(Signer::Given),
        Some(other) => {
            Err(format!("aws_auth_type may be accessKey, apiKey, assumedRole or serviceRole, not `{other}`"))
        }
    }
}

fn keys(options: &Options) -> Result<Option<(&str, &str)>, String> {
    match (options.get("aws_access_key_id"), options.get("aws_secret_access_key")) {
        (None, None) => Ok(None),
        (Some(id), Some(secret)) => Ok(Some((id, secret))),
        _ => Err("aws_access_key_id and aws_secret_access_key go together".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(given: &[(&str, &str)]) -> Options {
        Options::of(&OPTIONS, given)
    }

    const ID: (&str, &str) = ("aws_access_key_id", "AKID");
    const SECRET: (&str, &str) = ("aws_secret_access_key", "s");
    const REGION: (&str, &str) = ("aws_region", "us-east-1");
    const ROLE: (&str, &str) = ("aws_role_arn", "arn:aws:iam::1:role/r");

    #[test]
    fn keys_go_together_and_a_region_must_be_there() {
        let signed = |given: &[(&str, &str)]| signature("s", &options(given)).map(|found| found.is_some());
        assert!(signed(&[ID]).is_err() && signed(&[ID, SECRET]).is_err());
        assert_eq!(signed(&[]), Ok(false));
        assert_eq!(signed(&[ID, SECRET, REGION]), Ok(true));
        assert!(region(&options(&[("aws_region", "evil.example/")])).is_err());
    }

    #[test]
    fn who_gives_roles_is_known_by_its_whole_name() {
        for own in [
            "https://sts.amazonaws.com",
            "https://sts.eu-west-1.amazonaws.com/",
            "https://sts-fips.us-east-1.amazonaws.com",
            "https://sts.cn-north-1.amazonaws.com.cn",
            "https://sts.us-east-1.api.aws",
            "https://vpce-0a-1b.sts.eu-west-1.vpce.amazonaws.com",
        ] {
            assert!(is_sts(own), "{own}");
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
            assert!(!is_sts(other), "{other}");
        }
    }

    #[test]
    fn keys_that_take_a_role_on_sign_nothing_else() {
        let given = options(&[ID, SECRET, REGION, ROLE, ("aws_external_id", "x")]);
        assert_eq!(signature("s", &given).unwrap(), None);
        let Some(Grant::Role(role)) = grant("s", &given).unwrap() else { panic!("a role") };
        assert_eq!(
            (role.endpoint.as_str(), role.external_id.as_deref()),
            ("https://sts.us-east-1.amazonaws.com", Some("x"))
        );
        assert!(!Grant::Role(role).is_machines());
        assert!(grant("s", &options(&[("aws_auth_type", "assumedRole")])).unwrap_err().contains("no "));
        assert!(grant("s", &options(&[("aws_auth_type", "other")])).unwrap_err().contains("serviceRole"));
    }

    #[test]
    fn without_keys_the_machines_own_take_a_role_on_or_sign() {
        let Some(grant) = grant("s", &options(&[REGION, ROLE])).unwrap() else { panic!("a role") };
        assert!(grant.is_machines());
        let given = options(&[REGION, ("aws_auth_type", "serviceRole"), ID, SECRET]);
        assert_eq!(signature("s", &given).unwrap(), None);
        let Some(own) = super::grant("s", &given).unwrap() else { panic!("the machine") };
        assert_eq!((own.is_machines(), own.signs()), (true, Some(("s", "us-east-1"))));
    }
}
