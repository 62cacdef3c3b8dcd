//! Server side of TLS for `localhost` and `llm.example`, under a certificate authority that only these tests trust.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

/// Returns the path of a test certificate or key: a leaf, or the authority that signed it.
pub fn tls_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name)
}

/// Negotiates one of these ALPN protocols, or none if the list is empty.
pub fn tls_acceptor(protocols: &[&[u8]]) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(tls_file("certificate.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(tls_file("key.pem")).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}
