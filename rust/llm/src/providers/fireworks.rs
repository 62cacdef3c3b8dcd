//! Fireworks: `OpenAI`'s API for what is asked of models, and one of its own for what belongs to an account.

use super::{
    Asked, CHAT, COMPLETE, EMBED, Group, Known, Options, Provider, by_openai, options::known, segment, write_path,
};
use crate::{
    operation::Operation,
    translation::wires::{Wire, chat, painting, tuning},
};

pub(super) struct Fireworks;

const OPTIONS: &[Known] = &[known("fireworks_account_id", "fireworks-account-id")];

impl Provider for Fireworks {
    fn slug(&self) -> &'static str {
        "fireworks-ai"
    }

    fn base_url(&self) -> &'static str {
        "https://api.fireworks.ai/inference/v1"
    }

    fn offers(&self) -> &'static [Group] {
        &[CHAT, COMPLETE, EMBED]
    }

    fn options(&self) -> &'static [Known] {
        OPTIONS
    }

    fn base(&self, operation: Operation, _options: &Options) -> Result<Option<String>, String> {
        Ok(operation.tunes().then(|| "https://api.fireworks.ai".into()))
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        match operation {
            Operation::ImageGenerate => Some(&painting::FIREWORKS),
            Operation::ListFinetuneCheckpoints => None,
            _ if operation.tunes() => Some(&tuning::FIREWORKS),
            _ => by_openai(self.offers(), operation).then_some(&chat::COMPATIBLE),
        }
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        match asked.operation {
            Operation::ImageGenerate => {
                // Names with slashes stand in the path as they are.
                let model: Vec<_> = asked.model.split('/').map(segment::model).collect::<Result<_, _>>()?;
                out.extend_from_slice(format!("/image_generation/{}", model.join("/")).as_bytes());
            }
            operation if operation.tunes() => return write_job(asked, options, out),
            _ => write_path(self, asked, out),
        }
        Ok(())
    }
}

/// A job of an account's, or all of them: which part of a list is told is decided here.
fn write_job(asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
    let account = options.get("fireworks_account_id").ok_or("no account: send x-gateway-fireworks-account-id")?;
    let path = format!("/v1/accounts/{}/supervisedFineTuningJobs", segment::escaped(account));
    out.extend_from_slice(path.as_bytes());
    match asked.operation {
        Operation::ListFinetunes => out.extend_from_slice(b"?pageSize=200"),
        Operation::CreateFinetune => (),
        operation => {
            let verb = if operation == Operation::CancelFinetune { ":cancel" } else { "" };
            out.extend_from_slice(format!("/{}{verb}", super::job(asked.path)?).as_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Stated;

    #[test]
    fn jobs_belong_to_an_account_and_are_asked_for_beside_the_models() {
        let base = |operation| Fireworks.base(operation, &Options::default()).unwrap();
        assert_eq!(
            (base(Operation::ChatComplete), base(Operation::ListFinetunes).unwrap().as_str()),
            (None, "https://api.fireworks.ai")
        );
        let (operation, path, stated) = (Operation::RetrieveFinetune, "/fine_tuning/jobs/..", Stated::default());
        let asked = Asked { operation, path, query: "", prefix: "", model: "", user: "", streams: false, stated };
        let target = |asked: &Asked<'_>, given: &[(&str, &str)]| {
            let mut out = Vec::new();
            Fireworks
                .write_target(asked, &Options::of(OPTIONS, given), &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        let account = [("fireworks_account_id", "a/b")];
        assert!(target(&asked, &[]).unwrap_err().contains("x-gateway-fireworks-account-id"));
        assert!(target(&asked, &account).unwrap_err().contains("name a job"));
        let asked = Asked { path: "/fine_tuning/jobs/j%2F1", ..asked };
        assert_eq!(target(&asked, &account).unwrap(), "/v1/accounts/a%2Fb/supervisedFineTuningJobs/j%2F1");
    }
}
