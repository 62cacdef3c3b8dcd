//! Credentials that must be fetched before a request can carry them: what is asked for, of whom, and in whose name.

/// Of whom a credential is fetched.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Grant {
    /// Google gives a token to who signs as a service account: the key file, as JSON.
    ServiceAccount { key_file: String, scope: &'static str },
    /// Entra ID gives a token to an application with a secret.
    Application { authority: String, tenant: String, client: String, secret: String, scope: String },
    /// Amazon gives keys for a while to who may take a role on.
    Role(Box<Role>),
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
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
    /// What is signed with the keys that are given.
    pub service: &'static str,
}

impl Grant {
    /// Whether requests are signed with what is given, and carry no token.
    pub fn signs(&self) -> bool {
        matches!(self, Self::Role(_))
    }
}

/// Without what is secret.
impl std::fmt::Debug for Grant {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::ServiceAccount { .. } => "ServiceAccount",
            Self::Application { .. } => "Application",
            Self::Role(_) => "Role",
        })
    }
}
