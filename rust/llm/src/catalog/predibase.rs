//! Predibase: the path names the tenant and the deployment; the model in the body may name an adapter.

use super::{OperationGroup, OptionField, Options, PathInfo, Provider, options::gateway_option};
use crate::catalog::{
    param_map::{PREDIBASE, ParamRules},
    path_segment,
};
use crate::{
    chat::providers::{ProviderFormat, openai_chat},
    operation::Operation,
    translation::{self},
};

pub(crate) struct Predibase;

const OPTIONS: &[OptionField] = &[gateway_option("predibase_tenant", "predibase-tenant")];

impl Provider for Predibase {
    fn slug(&self) -> &'static str {
        "predibase"
    }

    fn base_url(&self) -> &'static str {
        "https://serving.app.predibase.com"
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        &[]
    }

    fn options(&self) -> &'static [OptionField] {
        OPTIONS
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        translation::is_chat_operation(operation).then_some(&openai_chat::LORA_ADAPTER)
    }

    fn param_rules(&self, _operation: Operation) -> &'static ParamRules {
        &PREDIBASE
    }

    fn model_in_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        path_segment::segment_after(path, &["/llms/"])
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.provider_format(path_info.operation, path_info.model).is_none() {
            super::write_path(self, path_info, out);
            return Ok(());
        }
        let tenant = options.get("predibase_tenant").or(Some(path_info.user).filter(|user| !user.is_empty()));
        let tenant = path_segment::encode_model(tenant.ok_or("no tenant: send x-gateway-predibase-tenant or `user`")?)?;
        // The part after the colon names an adapter on top of the deployment.
        let model = path_segment::encode_model(path_info.model.split(':').next().unwrap_or_default())?;
        let path = format!("/{tenant}/deployments/v2/llms/{model}/v1{CHAT_COMPLETIONS_PATH}");
        out.extend_from_slice(path.as_bytes());
        Ok(())
    }
}

const CHAT_COMPLETIONS_PATH: &str = "/chat/completions";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_defaults_to_the_user_and_the_adapter_is_not_in_the_path() {
        let path_info = |user| PathInfo {
            user,
            ..PathInfo::for_test(Operation::ChatComplete, CHAT_COMPLETIONS_PATH, "llama-3:my-adapter/1")
        };
        let mut out = Vec::new();
        Predibase.write_request_target(&path_info("acme"), &Options::default(), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "/acme/deployments/v2/llms/llama-3/v1/chat/completions");
        assert!(Predibase.write_request_target(&path_info(""), &Options::default(), &mut Vec::new()).is_err());
    }
}
