//! Decryption of private keys that are encrypted with a passphrase (PKCS #8, PBES2). Runs off the engine's thread; the
//! decrypted keys are cached.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::signature::RsaKeyPair;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use pkcs8::{
    EncryptedPrivateKeyInfoRef,
    pkcs5::{EncryptionScheme, pbes2::Kdf},
};

use crate::credentials::{credential_cache::CredentialCache, issued::IssuedCredential};

/// How long a decrypted key is cached.
const CACHE_LIFETIME: Duration = Duration::from_hours(24);
/// Maximum iteration count of an encrypted key. It is limited because clients choose it; a million iterations take
/// about a third of a second.
const MAX_PBKDF2_ROUNDS: u32 = 1_000_000;
const PEM_BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const PEM_END: &str = "-----END ENCRYPTED PRIVATE KEY-----";

/// Decrypts a key; only one key is decrypted at a time.
pub async fn decrypt_key(
    credential_cache: &CredentialCache,
    pem: String,
    passphrase: String,
) -> Result<(IssuedCredential, Duration), String> {
    let turn = Arc::clone(&credential_cache.decryption_lock).lock_owned().await;
    let decrypt = move || {
        let key = decrypt_pem(&pem, &passphrase);
        drop(turn);
        key
    };
    // Joining fails only during shutdown: decryption neither panics nor is cancelled.
    let key = tokio::task::spawn_blocking(decrypt).await.map_err(|_| "the gateway is shutting down")??;
    Ok((IssuedCredential::PrivateKey(Box::new(key)), CACHE_LIFETIME))
}

/// Decrypts a PEM key. Error messages reveal nothing of the key.
fn decrypt_pem(pem: &str, passphrase: &str) -> Result<RsaKeyPair, String> {
    let unreadable = "it is not an encrypted PKCS #8 key in PEM";
    // Line breaks may be written as `\n`, because a header cannot contain them.
    let text = pem.replace("\\n", "\n");
    let inside = text.split_once(PEM_BEGIN).and_then(|(_, rest)| rest.split_once(PEM_END)).ok_or(unreadable)?.0;
    let letters: String = inside.split_ascii_whitespace().collect();
    let der = BASE64_STANDARD.decode(letters).map_err(|_| unreadable)?;
    let sealed = EncryptedPrivateKeyInfoRef::try_from(&*der).map_err(|_| unreadable)?;
    let EncryptionScheme::Pbes2(scheme) = &sealed.encryption_algorithm else {
        return Err("it is encrypted with an unsupported scheme; only PBES2 is supported".into());
    };
    match &scheme.kdf {
        Kdf::Pbkdf2(kdf) if kdf.iteration_count <= MAX_PBKDF2_ROUNDS => (),
        Kdf::Pbkdf2(_) => return Err(format!("its key derivation uses more than {MAX_PBKDF2_ROUNDS} PBKDF2 rounds")),
        _ => return Err("its key derivation is not PBKDF2".into()),
    }
    let key = sealed.decrypt(passphrase).map_err(|_| "its passphrase is wrong")?;
    RsaKeyPair::from_pkcs8(key.as_bytes()).map_err(|_| "it contains no RSA key".into())
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::{
        encoding::AsDer,
        rsa::{KeyPair, KeySize},
        signature::KeyPair as _,
    };
    use pkcs8::{
        PrivateKeyInfoRef,
        der::Encode as _,
        pkcs5::{pbes2::Parameters, scrypt::Params as ScryptParams},
    };

    use super::*;

    /// Generates a key, and returns it with its encrypted PEM.
    fn encrypted_key(rounds: u32) -> (KeyPair, String) {
        let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let der = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&key).unwrap();
        let scheme = Parameters::generate_pbkdf2_sha256_aes256cbc(rounds, &[7; 16], [9; 16]).unwrap();
        let info = PrivateKeyInfoRef::try_from(der.as_ref()).unwrap();
        let sealed = info.encrypt_with_params(scheme, "open sesame").unwrap();
        (key, format!("{PEM_BEGIN}\\n{}\\n{PEM_END}\\nOCI_API_KEY", BASE64_STANDARD.encode(sealed.as_bytes())))
    }

    #[test]
    fn decrypts_key_only_with_the_right_passphrase() {
        let (key, pem) = encrypted_key(10);
        let opened = decrypt_pem(&pem, "open sesame").unwrap();
        assert_eq!(opened.public_key().as_ref(), key.public_key().as_ref());
        assert_eq!(decrypt_pem(&pem.replace("\\n", "\n"), "open sesame").map(|_| ()), Ok(()));
        let message = decrypt_pem(&pem, "s3cret").unwrap_err();
        assert!(message.contains("passphrase") && !message.contains("s3cret"), "{message}");
    }

    #[test]
    fn rejects_invalid_keys_and_costly_key_derivation() {
        let message = |pem: &str| decrypt_pem(pem, "p").unwrap_err();
        assert!(message("s3cret").contains("not an encrypted PKCS #8 key"));
        assert!(message(&format!("{PEM_BEGIN}\nAAAA\n{PEM_END}")).contains("not an encrypted PKCS #8 key"));
        let (_, pem) = encrypted_key(10);
        let der = BASE64_STANDARD.decode(pem.split("\\n").nth(1).unwrap()).unwrap();
        let mut sealed = EncryptedPrivateKeyInfoRef::try_from(&*der).unwrap();
        let costly = Parameters::generate_pbkdf2_sha256_aes256cbc(MAX_PBKDF2_ROUNDS + 1, &[7; 16], [9; 16]).unwrap();
        let large = Parameters::generate_scrypt_aes256cbc(ScryptParams::RECOMMENDED, &[7; 16], [9; 16]).unwrap();
        for (scheme, expected) in [(costly, "1000000 PBKDF2 rounds"), (large, "key derivation is not PBKDF2")] {
            sealed.encryption_algorithm = EncryptionScheme::Pbes2(scheme);
            let der = sealed.to_der().unwrap();
            let error = message(&format!("{PEM_BEGIN}\n{}\n{PEM_END}", BASE64_STANDARD.encode(der)));
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn decrypts_one_key_at_a_time() {
        let credential_cache = CredentialCache::default();
        let (_, pem) = encrypted_key(10);
        let turn = Arc::clone(&credential_cache.decryption_lock).lock_owned().await;
        let waiting = decrypt_key(&credential_cache, pem, "open sesame".into());
        tokio::pin!(waiting);
        let early_result = tokio::time::timeout(Duration::from_millis(20), &mut waiting).await;
        assert!(early_result.is_err(), "somebody else has the turn");
        drop(turn);
        assert!(matches!(waiting.await, Ok((IssuedCredential::PrivateKey(_), CACHE_LIFETIME))));
    }
}
