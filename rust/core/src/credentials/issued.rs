//! Credential that was fetched for a target: a token, access keys or a private key.

use aws_lc_rs::signature::RsaKeyPair;

/// A credential that was fetched from an identity provider.
pub enum IssuedCredential {
    Token(String),
    AccessKeys {
        id: String,
        secret: String,
        token: String,
    },
    PrivateKey(Box<RsaKeyPair>),
    /// A model name. It is no credential, but it is fetched with one and cached in the same way.
    ModelName(String),
}

impl IssuedCredential {
    /// Returns the token that is sent with a request; `None` for keys and model names.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) | Self::AccessKeys { token, .. } => Some(token),
            Self::PrivateKey(_) | Self::ModelName(_) => None,
        }
    }
}

/// Debug output for logs, without secrets.
impl std::fmt::Debug for IssuedCredential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Token(_) => "Token",
            Self::AccessKeys { .. } => "Keys",
            Self::PrivateKey(_) => "Key",
            Self::ModelName(_) => "Name",
        })
    }
}
