//! Credentials that must be fetched before a request can carry them: what is asked for, of whom, and in whose name.

/// Of whom a credential is fetched.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Grant {
    /// Google gives a token to who signs as a service account: the key file, as JSON.
    ServiceAccount { key_file: String, scope: &'static str },
    /// Google gives a token to who shows a token of somebody else's whom it trusts.
    ExternalAccount(Box<ExternalAccount>),
    /// Entra ID gives a token to an application with a secret.
    EntraApplication { authority: String, tenant: String, client_id: String, client_secret: String, scope: String },
    /// Entra ID gives the machine that this runs on a token of its own; with several identities a client says which.
    ManagedIdentity { resource: String, client_id: Option<String> },
    /// Entra ID gives a token to an application for which the machine vouches.
    FederatedApplication(Box<FederatedApplication>),
    /// Amazon gives keys for a while to who may take a role on.
    AssumeRole(Box<AssumeRole>),
    /// Amazon gives the machine that this runs on keys of its own.
    AwsMachineIdentity(AwsMachineIdentity),
    /// Nobody is asked: a key is at hand, in PEM, and opened by what it was sealed with, which takes long.
    EncryptedKey { pem: String, passphrase: String },
}

/// An application for which somebody vouches; what is not said of it the machine's own platform says.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FederatedApplication {
    pub tenant: Option<String>,
    pub client_id: Option<String>,
    pub scope: String,
    pub client_assertion: ClientAssertion,
}

/// With what is vouched for an application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientAssertion {
    /// The token that the machine's platform writes into a file.
    WorkloadTokenFile,
    /// That one where there is a file, else a token of the machine's own identity.
    TokenFileOrManagedIdentity { managed_client_id: Option<String> },
}

/// Who is known to Google by somebody else's word: what stands in a file of the type `external_account`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ExternalAccount {
    pub audience: String,
    pub subject_token_type: String,
    pub subject_token_source: SubjectTokenSource,
    /// Of what the source says, the member of an object that is the token; all of it where none is named.
    pub token_field: Option<String>,
    /// Who takes the token.
    pub token_url: String,
    /// Where a service account's own token is given for the one that comes of it, and for how many seconds.
    pub impersonation: Option<(String, u64)>,
    pub scope: &'static str,
}

/// Where a token of somebody else's is found.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum SubjectTokenSource {
    /// The machine's platform writes it there.
    File(String),
    Url {
        url: String,
        headers: Vec<(String, String)>,
    },
}

/// What the keys of the machine are for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AwsMachineIdentity {
    pub region: String,
    /// Where keys are given to who has a token of somebody else's.
    pub endpoint: String,
    /// What is signed with the keys.
    pub service: &'static str,
}

/// Amazon's keys, and the token that belongs to those of a while.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AwsCredentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

/// A role, and the keys of who takes it on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AssumeRole {
    pub arn: String,
    pub external_id: Option<String>,
    pub session_name: String,
    /// Where roles are given; the region's own service where none is named.
    pub sts_endpoint: String,
    pub region: String,
    /// Those of the machine that this runs on where there are none.
    pub source_credentials: Option<AwsCredentials>,
    /// What is signed with the keys that are given.
    pub service: &'static str,
}

/// What a token is of that Azure's storage takes, in each of its clouds.
const AZURE_STORAGE_RESOURCE: &str = "https://storage.azure.com";

impl Grant {
    /// The service and the region for which requests are signed with what is given; `None` where they carry a token.
    pub fn aws_signing_scope(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::AssumeRole(role) => Some((role.service, &role.region)),
            Self::AwsMachineIdentity(machine) => Some((machine.service, &machine.region)),
            _ => None,
        }
    }

    /// Whether requests are signed with what is given, and carry no key.
    pub fn requires_signing(&self) -> bool {
        self.aws_signing_scope().is_some() || matches!(self, Self::EncryptedKey { .. })
    }

    /// The same for Azure's storage, where it is Entra ID that is asked.
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
            Self::FederatedApplication(own) => {
                Some(Self::FederatedApplication(Box::new(FederatedApplication { scope, ..(**own).clone() })))
            }
            _ => None,
        }
    }

    /// Whether it is given to the machine that this runs on, and to nobody who asks.
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

/// Without what is secret.
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
