//! Predibase: the path names the tenant and the deployment; the model in the body may name an adapter.

use crate::{
    catalog::{
        options::{OptionField, Options, gateway_option},
        param_map::PREDIBASE,
        path_info::PathInfo,
        path_segment,
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{OperationRules, ProviderRow},
    },
    chat::providers::openai_chat,
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct Predibase;

const OPTIONS: &[OptionField] = &[gateway_option("predibase_tenant", "predibase-tenant")];

static ROW: ProviderRow = ProviderRow {
    options: OPTIONS,
    model_in_path: |path| path_segment::segment_after(path, &["/llms/"]),
    param_rules: OperationRules::uniform(&PREDIBASE),
    has_model_list: false,
    ..ProviderRow::new("predibase", "https://serving.app.predibase.com", &[])
};

impl ProviderFormats for Predibase {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static ProviderFormat> {
        operation.is_chat().then_some(&openai_chat::LORA_ADAPTER)
    }
}

impl ProviderAddress for Predibase {
    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.provider_format(path_info.operation, path_info.model).is_none() {
            write_path(self, path_info, out);
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

impl ProviderCredentials for Predibase {}

impl ProviderModels for Predibase {}

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
