//! Predibase: whose deployment it is, and which, in the path; an adapter is a model's name in the body.

use super::{Asked, Group, Known, Options, Provider, options::known};
use crate::catalog::{
    param_map::{PREDIBASE, Wording},
    path_segment,
};
use crate::{
    chat::providers::{Wire, openai_chat},
    operation::Operation,
    translation::{self},
};

pub(crate) struct Predibase;

const OPTIONS: &[Known] = &[known("predibase_tenant", "predibase-tenant")];

impl Provider for Predibase {
    fn slug(&self) -> &'static str {
        "predibase"
    }

    fn base_url(&self) -> &'static str {
        "https://serving.app.predibase.com"
    }

    fn offers(&self) -> &'static [Group] {
        &[]
    }

    fn options(&self) -> &'static [Known] {
        OPTIONS
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        translation::is_talk(operation).then_some(&openai_chat::ADAPTED)
    }

    fn wording(&self, _operation: Operation) -> &'static Wording {
        &PREDIBASE
    }

    fn named_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        path_segment::after(path, &["/llms/"])
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if self.wire(asked.operation, asked.model).is_none() {
            super::write_path(self, asked, out);
            return Ok(());
        }
        let tenant = options.get("predibase_tenant").or(Some(asked.user).filter(|user| !user.is_empty()));
        let tenant = path_segment::model(tenant.ok_or("no tenant: send x-gateway-predibase-tenant, or it as `user`")?)?;
        // What follows the colon is an adapter on top of the deployment.
        let model = path_segment::model(asked.model.split(':').next().unwrap_or_default())?;
        let path = format!("/{tenant}/deployments/v2/llms/{model}/v1{CHAT_PATH}");
        out.extend_from_slice(path.as_bytes());
        Ok(())
    }
}

const CHAT_PATH: &str = "/chat/completions";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenant_is_the_user_of_the_body_and_an_adapter_is_not_in_the_path() {
        let asked = |user| Asked { user, ..Asked::of(Operation::ChatComplete, CHAT_PATH, "llama-3:my-adapter/1") };
        let mut out = Vec::new();
        Predibase.write_target(&asked("acme"), &Options::default(), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "/acme/deployments/v2/llms/llama-3/v1/chat/completions");
        assert!(Predibase.write_target(&asked(""), &Options::default(), &mut Vec::new()).is_err());
    }
}
