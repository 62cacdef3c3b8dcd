//! Keys that sign requests to providers without API keys: AWS and Oracle. `Debug` omits the secrets.

/// Keys that sign a request that carries no API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningKeys<'o> {
    Amazon(AmazonKeys<'o>),
    Oracle(OracleKey<'o>),
}

/// AWS credentials and the scope for Signature Version 4.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AmazonKeys<'o> {
    pub service: &'static str,
    pub region: &'o str,
    pub access_key_id: &'o str,
    pub secret_access_key: &'o str,
    pub session_token: Option<&'o str>,
}

/// Signing key of an Oracle user, with the tenancy and the compartment to bill.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OracleKey<'o> {
    pub tenancy: &'o str,
    pub user: &'o str,
    pub fingerprint: &'o str,
    pub compartment: Option<&'o str>,
    /// Private key in PEM format.
    pub private_key: &'o str,
}

/// Omits the secrets.
impl std::fmt::Debug for AmazonKeys<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("AmazonKeys")
            .field("service", &self.service)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// Omits the private key.
impl std::fmt::Debug for OracleKey<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OracleKey").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}
