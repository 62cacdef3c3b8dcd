//! Credentials that must be fetched before a request can carry them: what is asked for, of whom, and in whose name.

/// Of whom a credential is fetched.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Grant {
    /// Google gives a token to who signs as a service account: the key file, as JSON.
    ServiceAccount { key_file: String, scope: &'static str },
    /// Google gives a token to who shows a token of somebody else's whom it trusts.
    ExternalAccount(Box<ExternalAccount>),
    /// Entra ID gives a token to an application with a secret.
    Application { authority: String, tenant: String, client: String, secret: String, scope: String },
    /// Entra ID gives the machine that this runs on a token of its own; with several identities a client says which.
    Managed { resource: String, client: Option<String> },
    /// Entra ID gives a token to an application for which the machine vouches.
    Federated(Box<Federated>),
    /// Amazon gives keys for a while to who may take a role on.
    Role(Box<Role>),
    /// Amazon gives the machine that this runs on keys of its own.
    Machine(Machine),
    /// Nobody is asked: a key is at hand, in PEM, and opened by what it was sealed with, which takes long.
    SealedKey { pem: String, passphrase: String },
}

/// An application for which somebody vouches; what is not said of it the machine's own platform says.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Federated {
    pub tenant: Option<String>,
    pub client: Option<String>,
    pub scope: String,
    pub voucher: Voucher,
}

/// With what is vouched for an application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Voucher {
    /// The token that the machine's platform writes into a file.
    Workload,
    /// That one where there is a file, else a token of the machine's own identity.
    Any { managed: Option<String> },
}

/// Who is known to Google by somebody else's word: what stands in a file of the type `external_account`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ExternalAccount {
    pub audience: String,
    pub token_type: String,
    pub source: Source,
    /// Of what the source says, the member of an object that is the token; all of it where none is named.
    pub member: Option<String>,
    /// Who takes the token.
    pub exchange: String,
    /// Where a service account's own token is given for the one that comes of it, and for how many seconds.
    pub impersonation: Option<(String, u64)>,
    pub scope: &'static str,
}

/// Where a token of somebody else's is found.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The machine's platform writes it there.
    File(String),
    Url {
        url: String,
        fields: Vec<(String, String)>,
    },
}

/// What the keys of the machine are for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    pub region: String,
    /// Where keys are given to who has a token of somebody else's.
    pub endpoint: String,
    /// What is signed with the keys.
    pub service: &'static str,
}

/// Amazon's keys, and the token that belongs to those of a while.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Keys {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
}

/// A role, and the keys of who takes it on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Role {
    pub arn: String,
    pub external_id: Option<String>,
    pub session_name: String,
    /// Where roles are given; the region's own service where none is named.
    pub endpoint: String,
    pub region: String,
    /// Those of the machine that this runs on where there are none.
    pub keys: Option<Keys>,
    /// What is signed with the keys that are given.
    pub service: &'static str,
}

/// What a token is of that Azure's storage takes, in each of its clouds.
const STORAGE: &str = "https://storage.azure.com";

impl Grant {
    /// The service and the region for which requests are signed with what is given; `None` where they carry a token.
    pub fn signs(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Role(role) => Some((role.service, &role.region)),
            Self::Machine(machine) => Some((machine.service, &machine.region)),
            _ => None,
        }
    }

    /// Whether requests are signed with what is given, and carry no key.
    pub fn is_to_sign(&self) -> bool {
        self.signs().is_some() || matches!(self, Self::SealedKey { .. })
    }

    /// The same for Azure's storage, where it is Entra ID that is asked.
    pub fn for_storage(&self) -> Option<Self> {
        let scope = format!("{STORAGE}/.default");
        match self {
            Self::Application { authority, tenant, client, secret, .. } => Some(Self::Application {
                authority: authority.clone(),
                tenant: tenant.clone(),
                client: client.clone(),
                secret: secret.clone(),
                scope,
            }),
            Self::Managed { client, .. } => Some(Self::Managed { resource: STORAGE.into(), client: client.clone() }),
            Self::Federated(own) => Some(Self::Federated(Box::new(Federated { scope, ..(**own).clone() }))),
            _ => None,
        }
    }

    /// Whether it is given to the machine that this runs on, and to nobody who asks.
    pub fn is_machines(&self) -> bool {
        match self {
            Self::Role(role) => role.keys.is_none(),
            Self::ExternalAccount(account) => matches!(account.source, Source::File(_)),
            grant => matches!(grant, Self::Machine(_) | Self::Managed { .. } | Self::Federated(_)),
        }
    }
}

/// Without what is secret.
impl std::fmt::Debug for Grant {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::ServiceAccount { .. } => "ServiceAccount",
            Self::ExternalAccount(_) => "ExternalAccount",
            Self::Application { .. } => "Application",
            Self::Managed { .. } => "Managed",
            Self::Federated(_) => "Federated",
            Self::Role(_) => "Role",
            Self::Machine(_) => "Machine",
            Self::SealedKey { .. } => "SealedKey",
        })
    }
}
