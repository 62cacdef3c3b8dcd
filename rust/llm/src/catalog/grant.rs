//! Grants: how the gateway fetches a credential that a request needs. Each variant names the issuer, the identity and
//! the scope.

/// Source from which a credential is fetched.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Grant {
    /// Google access token for a service account. `key_file` is its key file, as JSON.
    ServiceAccount { key_file: String, scope: &'static str },
    /// Google access token in exchange for a token of another identity provider that Google trusts (workload identity
    /// federation).
    ExternalAccount(Box<ExternalAccount>),
    /// Entra ID token for an application that authenticates with a client secret.
    EntraApplication { authority: String, tenant: String, client_id: String, client_secret: String, scope: String },
    /// Entra ID token for the managed identity of this machine. `client_id` selects one if the machine has several.
    ManagedIdentity { resource: String, client_id: Option<String> },
    /// Entra ID token for an application that authenticates with a token of this machine's platform.
    FederatedApplication(Box<FederatedApplication>),
    /// Temporary AWS credentials from STS for an assumed role.
    AssumeRole(Box<AssumeRole>),
    /// AWS credentials of the machine that the gateway runs on.
    AwsMachineIdentity(AwsMachineIdentity),
    /// Encrypted private key in PEM that is decrypted locally; nothing is fetched. Decryption is slow, so its result is
    /// cached like a fetched credential.
    EncryptedKey { pem: String, passphrase: String },
}

/// Entra ID application that authenticates with a client assertion. The machine's platform supplies the fields that are
/// `None`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FederatedApplication {
    pub tenant: Option<String>,
    pub client_id: Option<String>,
    pub scope: String,
    pub client_assertion: ClientAssertion,
}

/// Token with which a federated application authenticates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientAssertion {
    /// Token that the machine's platform writes to a file.
    WorkloadTokenFile,
    /// Token file if there is one, otherwise a token of the machine's managed identity.
    TokenFileOrManagedIdentity { managed_client_id: Option<String> },
}

/// Google workload identity federation: the contents of a credential file of type `external_account`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ExternalAccount {
    pub audience: String,
    pub subject_token_type: String,
    pub subject_token_source: SubjectTokenSource,
    /// Field of the source's JSON object that holds the token; `None` if the whole text is the token.
    pub token_field: Option<String>,
    /// URL of the token exchange (STS) endpoint.
    pub token_url: String,
    /// URL that exchanges the federated token for a service account's token, and that token's lifetime in seconds.
    pub impersonation: Option<(String, u64)>,
    pub scope: &'static str,
}

/// Location of the subject token from the other identity provider.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum SubjectTokenSource {
    /// Path of a file that the machine's platform writes.
    File(String),
    Url {
        url: String,
        headers: Vec<(String, String)>,
    },
}

/// How requests use the machine's AWS credentials.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AwsMachineIdentity {
    pub region: String,
    /// STS endpoint that exchanges a web identity token for credentials.
    pub endpoint: String,
    /// Service name that requests are signed for.
    pub service: &'static str,
}

/// AWS credentials. `session_token` is set for temporary ones.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AwsCredentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

/// Role to assume, and the credentials that assume it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AssumeRole {
    pub arn: String,
    pub external_id: Option<String>,
    pub session_name: String,
    /// URL of the STS endpoint. The default is the endpoint of the region.
    pub sts_endpoint: String,
    pub region: String,
    /// Credentials that assume the role; `None` means the credentials of the machine.
    pub source_credentials: Option<AwsCredentials>,
    /// Service name that requests are signed for with the role's credentials.
    pub service: &'static str,
}

/// Entra ID resource of Azure Storage, the same in every Azure cloud.
const AZURE_STORAGE_RESOURCE: &str = "https://storage.azure.com";

impl Grant {
    /// Returns the service and the region that requests are signed for; `None` if requests carry a token.
    pub fn aws_signing_scope(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::AssumeRole(role) => Some((role.service, &role.region)),
            Self::AwsMachineIdentity(machine) => Some((machine.service, &machine.region)),
            _ => None,
        }
    }

    /// Returns true if requests are signed and carry no API key.
    pub fn requires_signing(&self) -> bool {
        self.aws_signing_scope().is_some() || matches!(self, Self::EncryptedKey { .. })
    }

    /// Returns the same Entra ID grant for Azure Storage; `None` for grants of other issuers.
    pub fn for_azure_storage(&self) -> Option<Self> {
        let scope = format!("{AZURE_STORAGE_RESOURCE}/.default");
        match self {
            Self::EntraApplication { authority, tenant, client_id: client, client_secret: secret, .. } => {
                Some(Self::EntraApplication {
                    authority: authority.clone(),
                    tenant: tenant.clone(),
                    client_id: client.clone(),
                    client_secret: secret.clone(),
                    scope,
                })
            }
            Self::ManagedIdentity { client_id: client, .. } => {
                Some(Self::ManagedIdentity { resource: AZURE_STORAGE_RESOURCE.into(), client_id: client.clone() })
            }
            Self::FederatedApplication(application) => {
                Some(Self::FederatedApplication(Box::new(FederatedApplication { scope, ..(**application).clone() })))
            }
            _ => None,
        }
    }

    /// Returns true if the credential belongs to the machine that the gateway runs on, not to the client.
    pub fn is_machine_identity(&self) -> bool {
        match self {
            Self::AssumeRole(role) => role.source_credentials.is_none(),
            Self::ExternalAccount(account) => matches!(account.subject_token_source, SubjectTokenSource::File(_)),
            grant => matches!(
                grant,
                Self::AwsMachineIdentity(_) | Self::ManagedIdentity { .. } | Self::FederatedApplication(_)
            ),
        }
    }
}

/// Prints the variant only, because its fields hold secrets.
impl std::fmt::Debug for Grant {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::ServiceAccount { .. } => "ServiceAccount",
            Self::ExternalAccount(_) => "ExternalAccount",
            Self::EntraApplication { .. } => "Application",
            Self::ManagedIdentity { .. } => "Managed",
            Self::FederatedApplication(_) => "Federated",
            Self::AssumeRole(_) => "Role",
            Self::AwsMachineIdentity(_) => "Machine",
            Self::EncryptedKey { .. } => "SealedKey",
        })
    }
}
