//! Oracle Cloud request signature (version 1). Covers a rendered head and the digest of its body.

use std::time::SystemTime;

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use penstock_llm::catalog::OracleKey;
use rustls::pki_types::{PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, pem::PemObject};

use crate::credentials::payload_hash::PayloadDigest;

/// Adds the signature fields to a head. `opened` is the decrypted key if the configured key is encrypted. Returns an
/// error message if signing is impossible.
pub fn sign_head(
    with: &OracleKey<'_>,
    opened: Option<&RsaKeyPair>,
    head: &mut Vec<u8>,
    authority: &str,
    payload: &PayloadDigest,
    now: SystemTime,
) -> Result<(), String> {
    let plain = if opened.is_some() { None } else { parse_private_key(with.private_key) };
    let key = opened.or(plain.as_ref()).ok_or("oracle_private_key must be an RSA key in PEM")?;
    let text = std::str::from_utf8(head).map_err(|error| error.to_string())?;
    let mut parts = text.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let kind = text.lines().find_map(|line| line.strip_prefix("content-type: "));
    let mut signed = vec![
        ("date", format_http_date(now)),
        ("(request-target)", format!("{} {target}", method.to_ascii_lowercase())),
        ("host", authority.to_owned()),
    ];
    if matches!(method, "POST" | "PUT" | "PATCH") {
        signed.push(("content-length", payload.length.to_string()));
        signed.push(("content-type", kind.unwrap_or("application/json").to_owned()));
        signed.push(("x-content-sha256", BASE64_STANDARD.encode(payload.digest)));
    }
    let signing_lines: Vec<_> = signed.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut signature = vec![0; key.public_modulus_len()];
    let unusable = "oracle_private_key cannot sign";
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signing_lines.join("\n").as_bytes(), &mut signature)
        .map_err(|_| unusable)?;
    let names: Vec<_> = signed.iter().map(|(name, _)| *name).collect();
    let authorization = format!(
        "Signature version=\"1\",keyId=\"{}/{}/{}\",algorithm=\"rsa-sha256\",headers=\"{}\",signature=\"{}\"",
        with.tenancy,
        with.user,
        with.fingerprint,
        names.join(" "),
        BASE64_STANDARD.encode(signature)
    );
    // Some Oracle operations read the compartment under this older name.
    let mut fields: Vec<_> = with.compartment.map(|id| ("compartmentid", id.to_owned())).into_iter().collect();
    let is_new = |name: &str| matches!(name, "date" | "x-content-sha256") || (name == "content-type" && kind.is_none());
    fields.extend(signed.into_iter().filter(|(name, _)| is_new(name)));
    fields.push(("authorization", authorization));
    head.truncate(head.len() - b"\r\n".len());
    for (name, value) in fields {
        head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    Ok(())
}

/// Parses a private key in PEM. Line breaks may be written as `\n`, because a header cannot contain them.
fn parse_private_key(pem: &str) -> Option<RsaKeyPair> {
    let pem = pem.replace("\\n", "\n");
    if let Ok(key) = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()) {
        return RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).ok();
    }
    let key = PrivatePkcs1KeyDer::from_pem_slice(pem.as_bytes()).ok()?;
    RsaKeyPair::from_der(key.secret_pkcs1_der()).ok()
}

/// Formats a date for an HTTP header: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn format_http_date(now: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    let text = humantime::format_rfc3339_seconds(now).to_string();
    let (year, month, day, time) = (&text[..4], &text[5..7], &text[8..10], &text[11..19]);
    let month = month.parse().ok().and_then(|month: usize| MONTHS.get(month - 1)).copied().unwrap_or_default();
    format!("{}, {day} {month} {year} {time} GMT", DAYS[(days % 7) as usize])
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use aws_lc_rs::{
        encoding::AsDer,
        rsa::{KeyPair, KeySize},
        signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey},
    };

    use super::*;

    const SIGNED_AT: Duration = Duration::from_secs(784_111_777);

    fn sign_request(key: &KeyPair, line: &str, body: &[u8]) -> String {
        let der = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(key).unwrap();
        let lines = BASE64_STANDARD.encode(der.as_ref());
        let pem = format!("-----BEGIN PRIVATE KEY-----\\n{lines}\\n-----END PRIVATE KEY-----");
        let with =
            OracleKey { tenancy: "t", user: "u", fingerprint: "aa:bb", compartment: Some("c-1"), private_key: &pem };
        let mut head = format!("{line} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n\r\n").into_bytes();
        sign_head(&with, None, &mut head, "h", &PayloadDigest::compute(body), UNIX_EPOCH + SIGNED_AT).unwrap();
        String::from_utf8(head).unwrap()
    }

    fn verify_signature(key: &KeyPair, head: &str, message: &str) {
        let (_, rest) = head.split_once("signature=\"").unwrap();
        let signature = BASE64_STANDARD.decode(rest.split('"').next().unwrap()).unwrap();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, key.public_key());
        public.verify(message.as_bytes(), &signature).expect("the key signed these words");
    }

    #[test]
    fn signature_covers_the_sent_fields() {
        let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let head = sign_request(&key, "POST /20231130/actions/v1/chat/completions", b"{}");
        assert!(head.contains("\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(head.contains("keyId=\"t/u/aa:bb\"") && head.contains("\r\ncompartmentid: c-1\r\n"), "{head}");
        let digest = "RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=";
        verify_signature(
            &key,
            &head,
            &format!(
                "date: Sun, 06 Nov 1994 08:49:37 GMT\n(request-target): post /20231130/actions/v1/chat/completions\n\
                 host: h\ncontent-length: 2\ncontent-type: application/json\nx-content-sha256: {digest}"
            ),
        );
        let head = sign_request(&key, "GET /models", b"");
        verify_signature(&key, &head, "date: Sun, 06 Nov 1994 08:49:37 GMT\n(request-target): get /models\nhost: h");
    }

    #[test]
    fn rejects_invalid_private_key_without_revealing_it() {
        let with = OracleKey { tenancy: "t", user: "u", fingerprint: "f", compartment: None, private_key: "s3cret" };
        let mut head = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let message = sign_head(&with, None, &mut head, "h", &PayloadDigest::compute(b""), UNIX_EPOCH).unwrap_err();
        assert!(message.contains("oracle_private_key") && !message.contains("s3cret"), "{message}");
    }
}
