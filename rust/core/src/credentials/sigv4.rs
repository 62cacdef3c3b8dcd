//! AWS Signature Version 4. Covers a rendered head and the digest of its body.

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{
        PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
        UriPathNormalizationMode, sign as sign_request,
    },
    sign::v4,
};
use penstock_llm::catalog::AmazonKeys;

use crate::credentials::payload_hash::PayloadDigest;

/// Adds the signature fields to a head. Without a payload digest, the body is declared as unsigned, which object stores
/// accept. Returns an error message if signing is impossible.
pub fn sign_head(
    with: &AmazonKeys<'_>,
    head: &mut Vec<u8>,
    authority: &str,
    payload: Option<&PayloadDigest>,
    now: SystemTime,
) -> Result<(), String> {
    let credentials = Credentials::new(
        with.access_key_id,
        with.secret_access_key,
        with.session_token.map(ToOwned::to_owned),
        None,
        env!("CARGO_PKG_NAME"),
    );
    let (identity, keeps_objects) = (credentials.into(), payload.is_none());
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(with.region)
        .name(with.service)
        .time(now)
        .settings(signing_settings(payload.is_some()))
        .build()
        .map_err(|error| error.to_string())?
        .into();
    let text = String::from_utf8(head.clone()).map_err(|error| error.to_string())?;
    let mut lines = text.split("\r\n");
    let mut parts = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let uri = format!("https://{authority}{target}");
    let digested = |payload: &PayloadDigest| SignableBody::Precomputed(payload.to_hex());
    let body = payload.map_or(SignableBody::UnsignedPayload, digested);
    // Object stores require their own `x-amz-` fields to be signed.
    let must_sign = |field: &(&str, &str)| keeps_objects && field.0.starts_with("x-amz-");
    let fields = lines.filter_map(|line| line.split_once(": ")).filter(must_sign);
    let request = SignableRequest::new(method, uri, [("host", authority)].into_iter().chain(fields), body);
    let signed =
        sign_request(request.map_err(|error| error.to_string())?, &params).map_err(|error| error.to_string())?;
    let (fields, _) = signed.into_parts().0.into_parts();
    head.truncate(head.len() - b"\r\n".len());
    for field in fields {
        head.extend_from_slice(format!("{}: {}\r\n", field.name(), field.value()).as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    Ok(())
}

/// Returns the signing settings. Object stores take paths unnormalised, and need a header that states how the body was
/// signed.
fn signing_settings(is_read: bool) -> SigningSettings {
    let mut settings = SigningSettings::default();
    if !is_read {
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    }
    settings
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// Keys and time of the published AWS test suite: 2015-08-30T12:36:00Z.
    const TEST_SUITE_KEYS: AmazonKeys<'_> = AmazonKeys {
        service: "service",
        region: "us-east-1",
        access_key_id: "AKIDEXAMPLE",
        secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        session_token: None,
    };
    const SIGNED_AT_SECONDS: u64 = 1_440_938_160;

    fn sign_request_line(with: &AmazonKeys<'_>, line: &str, body: &[u8]) -> String {
        let mut head = format!("{line} HTTP/1.1\r\nhost: example.amazonaws.com\r\n\r\n").into_bytes();
        let now = UNIX_EPOCH + Duration::from_secs(SIGNED_AT_SECONDS);
        sign_head(with, &mut head, "example.amazonaws.com", Some(&PayloadDigest::compute(body)), now).unwrap();
        String::from_utf8(head).unwrap()
    }

    #[test]
    fn matches_the_published_test_vectors() {
        for (line, signature) in [
            ("GET /", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("POST /", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
            ("GET /ሴ", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
            ("GET /?Param2=value2&Param1=value1", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
            (
                "GET /?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
                "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
            ),
        ] {
            let head = sign_request_line(&TEST_SUITE_KEYS, line, b"");
            let expected = format!(
                "authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                 SignedHeaders=host;x-amz-date, Signature={signature}\r\n"
            );
            assert!(head.contains(&expected), "{head}");
            assert!(head.contains("x-amz-date: 20150830T123600Z\r\n") && head.ends_with("\r\n\r\n"));
        }
    }

    #[test]
    fn sends_and_signs_session_token_but_never_the_secret() {
        let token = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
        let head = sign_request_line(&AmazonKeys { session_token: Some(token), ..TEST_SUITE_KEYS }, "GET /", b"");
        assert!(head.contains(&format!("x-amz-security-token: {token}\r\n")), "{head}");
        assert!(
            head.contains("Signature=07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8\r\n"),
            "{head}"
        );
        let head = sign_request_line(
            &AmazonKeys { session_token: Some("session"), ..TEST_SUITE_KEYS },
            "POST /model/a%3Ab/converse",
            b"{}",
        );
        assert!(head.contains("x-amz-security-token: session\r\n"), "{head}");
        assert!(
            head.contains("SignedHeaders=host;x-amz-date;x-amz-security-token,")
                && !head.contains(TEST_SUITE_KEYS.secret_access_key)
        );
    }

    #[test]
    fn declares_an_unread_body_as_unsigned() {
        let mut head = b"PUT /b/a%3Ab HTTP/1.1\r\nhost: s3\r\n\r\n".to_vec();
        sign_head(&TEST_SUITE_KEYS, &mut head, "s3", None, UNIX_EPOCH + Duration::from_secs(SIGNED_AT_SECONDS))
            .unwrap();
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"), "{head}");
        assert!(head.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date,"), "{head}");
    }

    #[test]
    fn signs_the_metadata_fields_of_an_object() {
        let mut head = b"PUT /b/a HTTP/1.1\r\nhost: s3\r\nx-amz-meta-purpose: batch\r\nx-other: 1\r\n\r\n".to_vec();
        sign_head(&TEST_SUITE_KEYS, &mut head, "s3", None, UNIX_EPOCH + Duration::from_secs(SIGNED_AT_SECONDS))
            .unwrap();
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-purpose,"), "{head}");
        assert_eq!(head.matches("x-amz-meta-purpose:").count(), 1, "{head}");
    }

    #[test]
    fn signature_depends_on_body_and_path() {
        let signature = |line, body: &[u8]| {
            sign_request_line(&TEST_SUITE_KEYS, line, body).split("Signature=").last().unwrap().to_owned()
        };
        let first_signature = signature("POST /a", b"1");
        assert!(first_signature != signature("POST /a", b"2") && first_signature != signature("POST /b", b"1"));
    }
}
