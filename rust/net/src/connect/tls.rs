//! TLS client configuration for providers. Uses the system's certificate authorities, bundled ones if there are none,
//! and the operator's own.

use std::{fs, io, path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD as STANDARD};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject},
};

use crate::error::SettingError;

/// ALPN protocol id of HTTP/2.
pub const ALPN_HTTP2: &[u8] = b"h2";

/// Returns a client configuration for TLS 1.2 and 1.3. Offers HTTP/2 first if `http2` is set.
pub fn client_config(extra: Option<&Path>, http2: bool) -> Result<Arc<ClientConfig>, SettingError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    if let Some(path) = extra {
        add_roots(&mut roots, path).map_err(|message| SettingError::new("tls_ca", message))?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| SettingError::new("tls", error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if http2 {
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), b"http/1.1".to_vec()];
    }
    Ok(Arc::new(config))
}

/// Returns the system's and the operator's certificate authorities as PEM, for clients that build their own TLS
/// configuration.
pub fn trusted_roots_pem(extra: &Path) -> io::Result<Vec<u8>> {
    let mut text = fs::read(extra)?;
    for certificate in rustls_native_certs::load_native_certs().certs {
        let certificate = STANDARD.encode(certificate);
        text.extend(format!("\n-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n").into_bytes());
    }
    Ok(text)
}

fn add_roots(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let before = roots.len();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.len() == before { Err(format!("{}: contains no certificate", path.display())) } else { Ok(()) }
}
