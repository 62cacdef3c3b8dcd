//! Amazon Bedrock: models of many vendors by one shape, the region in the host, requests signed or with a key of Bedrock's own.

use super::{Asked, BEDROCK, Credential, Group, Known, Options, Provider, Signature, options::known, segment};
use crate::{
    operation::Operation,
    translation::{
        self,
        wires::{Wire, converse::Converse},
    },
};

pub(super) struct Bedrock;

const OPTIONS: &[Known] = &[
    known("aws_region", "aws-region"),
    known("aws_access_key_id", "aws-access-key-id"),
    known("aws_secret_access_key", "aws-secret-access-key"),
    known("aws_session_token", "aws-session-token"),
    known("aws_bedrock_model", "aws-bedrock-model"),
    known("aws_auth_type", "aws-auth-type"),
    known("aws_role_arn", "aws-role-arn"),
];

impl Provider for Bedrock {
    fn slug(&self) -> &'static str {
        "bedrock"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[BEDROCK]
    }

    fn options(&self) -> &'static [Known] {
        OPTIONS
    }

    fn base(&self, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://bedrock-runtime.{}.amazonaws.com", region(options)?)))
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        let is_its_own = BEDROCK.contains(&operation);
        (translation::is_talk(operation) && !is_its_own).then_some(&Converse)
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        let own = BEDROCK.contains(&asked.operation).then(|| own(asked.operation));
        if self.wire(asked.operation, asked.model).is_none() && own.is_none() {
            super::write_path(self, asked, out);
            return Ok(());
        }
        let model = segment::model(options.get("aws_bedrock_model").unwrap_or(asked.model))?;
        let verb = own.unwrap_or(if asked.streams { "converse-stream" } else { "converse" });
        out.extend_from_slice(format!("/model/{model}/{verb}").as_bytes());
        Ok(())
    }

    fn credential(&self, _key: &str) -> Credential {
        Credential::Bearer
    }

    fn signature<'o>(&self, options: &'o Options) -> Result<Option<Signature<'o>>, String> {
        if options.get("aws_role_arn").is_some()
            || matches!(options.get("aws_auth_type"), Some("assumedRole" | "serviceRole"))
        {
            return Err("roles cannot be assumed in this version: send keys".into());
        }
        let (id, secret) = (options.get("aws_access_key_id"), options.get("aws_secret_access_key"));
        match (id, secret) {
            (None, None) => Ok(None),
            (Some(id), Some(secret)) => Ok(Some(Signature {
                service: "bedrock",
                region: region(options)?,
                id,
                secret,
                token: options.get("aws_session_token"),
            })),
            _ => Err("aws_access_key_id and aws_secret_access_key go together".into()),
        }
    }
}

/// What its own clients ask for.
fn own(operation: Operation) -> &'static str {
    match operation {
        Operation::ConverseStream => "converse-stream",
        Operation::InvokeModel => "invoke",
        Operation::InvokeModelStream => "invoke-with-response-stream",
        _ => "converse",
    }
}

fn region(options: &Options) -> Result<&str, String> {
    let region = options.get("aws_region").ok_or("no region: send x-gateway-aws-region")?;
    if segment::is_label(region) { Ok(region) } else { Err("aws_region must be letters, digits and dashes".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Stated;

    fn options(given: &[(&str, &str)]) -> Options {
        let mut options = Options::default();
        for (key, value) in given {
            options.put(*OPTIONS.iter().find(|option| option.key == *key).unwrap(), (*value).to_owned());
        }
        options
    }

    #[test]
    fn an_arn_is_one_segment_of_the_path() {
        let model = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-v1:0";
        let (operation, stated) = (Operation::ChatComplete, Stated::default());
        let asked = Asked { operation, path: "", query: "", prefix: "", model, streams: true, stated };
        let mut out = Vec::new();
        Bedrock.write_target(&asked, &Options::default(), &mut out).unwrap();
        let expected = "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.anthropic.claude-v1%3A0/converse-stream";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn keys_go_together_and_a_region_must_be_there() {
        let id = ("aws_access_key_id", "AKID");
        let secret = ("aws_secret_access_key", "s");
        assert!(Bedrock.signature(&options(&[id])).is_err());
        assert!(Bedrock.signature(&options(&[id, secret])).is_err());
        assert_eq!(Bedrock.signature(&options(&[])).unwrap(), None);
        let signed = options(&[id, secret, ("aws_region", "us-east-1")]);
        assert_eq!(Bedrock.signature(&signed).unwrap().unwrap().region, "us-east-1");
        assert!(Bedrock.base(&options(&[("aws_region", "evil.example/")])).is_err());
    }
}
