//! Row of a provider in the catalogue: everything about the provider that is data and not behaviour.

use crate::{
    api_format::format::ApiFormat,
    catalog::{
        operation_groups::OperationGroup,
        options::{OptionField, Options},
        param_map::{self, IDENTITY, ParamRules},
        path_segment::find_model,
        prefill::PrefillSupport,
    },
    error_response::ErrorFallback,
    files::FileStore,
    operation::Operation,
};

/// How a request carries its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// `authorization: Bearer <key>`
    Bearer,
    /// The plain key in the header with this lower-case name.
    Header(&'static str),
    /// `authorization` with this scheme instead of `Bearer`.
    Scheme(&'static str),
}

/// Provider and models in the public price list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriceList {
    /// Name of the provider in the list; `None` if it is the slug.
    pub name: Option<&'static str>,
    /// Beginnings of models that are listed under this name, but that another provider of the same company has.
    pub foreign_prefixes: &'static [&'static str],
    /// Endings of such models.
    pub foreign_suffixes: &'static [&'static str],
    /// True if models have variants whose names end like patterns of the list, such as `:free`.
    pub has_variants: bool,
}

impl PriceList {
    pub(crate) const BY_SLUG: Self =
        Self { name: None, foreign_prefixes: &[], foreign_suffixes: &[], has_variants: false };

    pub(crate) const fn named(name: &'static str) -> Self {
        Self { name: Some(name), ..Self::BY_SLUG }
    }
}

/// Function that finds the model or deployment in a path. The result is percent-encoded as received.
pub(crate) type ModelPathParser = fn(&str) -> Option<&str>;

/// Parameter rules by kind of operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationRules {
    pub chat: &'static ParamRules,
    pub completions: &'static ParamRules,
    pub embeddings: &'static ParamRules,
    /// Rules for requests that clients send in the Messages or Converse format, and that are sent to Claude without
    /// translation.
    pub messages: &'static ParamRules,
}

impl OperationRules {
    /// Applies the same rules to all operations of `OpenAI`'s format.
    pub(crate) const fn uniform(rules: &'static ParamRules) -> Self {
        Self { chat: rules, completions: rules, embeddings: rules, messages: &IDENTITY }
    }
}

/// Properties of a provider. `ProviderRow::new` has the values of `OpenAI`'s API; a provider's row sets its
/// differences.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
pub struct ProviderRow {
    /// Name of the provider in `x-gateway-provider` and in configs.
    pub slug: &'static str,
    /// Base URL without a trailing slash; empty if it depends on options or a custom host.
    pub base_url: &'static str,
    /// Version segment between the base URL and the path of an operation.
    pub version_segment: &'static str,
    /// Version of a forwarded path if neither the path nor the base URL has one. Empty if the provider has paths
    /// without a version, or a version in its base URL.
    pub forwarded_version: &'static str,
    /// First segments of forwarded paths that contain their version after that segment, such as `upload`.
    pub unversioned_roots: &'static [&'static str],
    /// Operations that the provider supports natively, by group.
    pub native_operations: &'static [OperationGroup],
    /// Options that the provider accepts besides a credential.
    pub options: &'static [OptionField],
    /// API format of the provider's errors, and of paths that several formats share.
    pub api_format: ApiFormat,
    /// How to send the credential, unless the credential or the base URL decides.
    pub(crate) credential: Credential,
    /// Header that must be present, with the value to send if the client sets none.
    pub(crate) required_header: Option<(&'static str, &'static str)>,
    /// Option with a bearer token, which takes precedence over every API key.
    pub(crate) bearer_token_option: Option<&'static str>,
    /// Options with the real model name, if requests use another name such as a deployment. The first that is set wins.
    pub(crate) model_name_options: &'static [&'static str],
    /// Options that name the model to call, even if the request names another one. The first that is set wins.
    pub(crate) model_override_options: &'static [&'static str],
    /// Options that select one of several models behind an endpoint, by the name that the endpoint gives the model.
    pub model_selection_options: &'static [&'static str],
    /// Option whose value `true` means that responses use prepaid throughput, which is already paid.
    pub(crate) prepaid_option: Option<&'static str>,
    pub(crate) model_in_path: ModelPathParser,
    pub(crate) param_rules: OperationRules,
    /// True if models of many vendors need the parameter rules and formats of their vendors.
    pub(crate) hosts_many_vendors: bool,
    /// True if streams end with their usage although requests do not ask for it. Such providers often reject
    /// `stream_options`.
    pub(crate) always_streams_usage: bool,
    /// True if completions may have finish reasons that `OpenAI` does not define.
    pub has_custom_finish_reasons: bool,
    /// True if the provider has an endpoint that lists its models; otherwise the catalogue lists them.
    pub has_model_list: bool,
    /// True if search models search once for each completion and do not report it.
    pub hides_searches: bool,
    /// True if every model of the provider can count the tokens of a request.
    pub counts_tokens_with_every_model: bool,
    /// Maximum number of stop sequences in a chat completion; `None` if the provider has no limit.
    pub max_stop_sequences: Option<usize>,
    /// Parameter that bounds the tokens of a chat completion.
    pub chat_output_limit: &'static str,
    /// True for the mock provider, whose base URL is a setting.
    pub has_mock_address: bool,
    /// How the provider supports assistant prefill.
    pub prefill: PrefillSupport,
    /// Source of an error type or code that the provider omits.
    pub(crate) error_fallback: ErrorFallback,
    /// Store of the provider's files, if its file API differs from `OpenAI`'s.
    pub file_store: Option<FileStore>,
    /// True if batches can write their output to a customer's Azure Blob Storage.
    pub can_write_azure_blobs: bool,
    pub price_list: PriceList,
}

impl ProviderRow {
    pub(crate) const fn new(
        slug: &'static str,
        base_url: &'static str,
        native_operations: &'static [OperationGroup],
    ) -> Self {
        Self {
            slug,
            base_url,
            version_segment: "",
            forwarded_version: "",
            unversioned_roots: &[],
            native_operations,
            options: &[],
            api_format: ApiFormat::OpenAi,
            credential: Credential::Bearer,
            required_header: None,
            bearer_token_option: None,
            model_name_options: &[],
            model_override_options: &[],
            model_selection_options: &[],
            prepaid_option: None,
            model_in_path: find_model,
            param_rules: OperationRules::uniform(&IDENTITY),
            hosts_many_vendors: false,
            always_streams_usage: false,
            has_custom_finish_reasons: false,
            has_model_list: true,
            hides_searches: false,
            counts_tokens_with_every_model: true,
            max_stop_sequences: Some(4),
            chat_output_limit: "max_tokens",
            has_mock_address: false,
            prefill: PrefillSupport::UNKNOWN,
            error_fallback: ErrorFallback::None,
            file_store: None,
            can_write_azure_blobs: false,
            price_list: PriceList::BY_SLUG,
        }
    }

    /// Returns true if responses use prepaid throughput, which is already paid.
    pub fn is_prepaid(&self, options: &Options) -> bool {
        self.prepaid_option.is_some_and(|key| options.get(key) == Some("true"))
    }

    /// Returns the bearer token among the options; it takes precedence over every API key.
    pub fn bearer_token<'o>(&self, options: &'o Options) -> Option<&'o str> {
        self.bearer_token_option.and_then(|key| options.get(key))
    }

    /// Returns the real model name from the options, if requests use another name such as a deployment.
    pub fn model_from_options<'o>(&self, options: &'o Options) -> Option<&'o str> {
        self.model_name_options.iter().find_map(|key| options.get(key))
    }

    /// Returns the model that the options select, even if the request or batch file names another one.
    pub fn model_override<'o>(&self, options: &'o Options) -> Option<&'o str> {
        self.model_override_options.iter().find_map(|key| options.get(key))
    }

    /// Returns the model or deployment in a provider-specific path that is forwarded unparsed. It is percent-encoded as
    /// received and may end with a method such as `:predict`.
    pub fn model_in_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        (self.model_in_path)(path)
    }

    /// Returns the parameter mapping for chat and text completions sent to this provider, whatever the client format.
    pub fn param_rules(&self, operation: Operation) -> &'static ParamRules {
        match operation {
            Operation::Complete => self.param_rules.completions,
            Operation::Embed => self.param_rules.embeddings,
            Operation::Messages
            | Operation::MessagesCountTokens
            | Operation::Converse
            | Operation::ConverseStream
            | Operation::InvokeModel
            | Operation::InvokeModelStream => self.param_rules.messages,
            _ => self.param_rules.chat,
        }
    }

    /// Same as `param_rules`, for a model whose vendor may need other rules.
    pub fn param_rules_for_model(&self, operation: Operation, model: &str) -> &'static ParamRules {
        let rules = self.param_rules(operation);
        // Models of other vendors do not sign their thinking.
        let is_shared_format = !matches!(operation, Operation::Messages | Operation::MessagesCountTokens);
        if rules.drops_unsigned_thinking && is_shared_format && !model.contains("claude") {
            return &IDENTITY;
        }
        if self.hosts_many_vendors { param_map::multi_vendor_rules(rules, operation, model) } else { rules }
    }

    /// Returns true if streams of completions report their usage when `stream_options` asks for it.
    pub(crate) fn accepts_stream_options(&self) -> bool {
        !self.always_streams_usage && self.param_rules.chat.accepts_field("stream_options")
    }
}
