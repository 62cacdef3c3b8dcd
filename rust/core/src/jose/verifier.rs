//! Public keys of identity providers, and signature verification with them.

use aws_lc_rs::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;

const MIN_RSA_MODULUS_BYTES: usize = 256;

/// Public key of a JSON Web Key Set (RFC 7517).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Jwk {
    pub kid: String,
    pub kty: String,
    #[serde(rename = "use")]
    pub usage: String,
    pub n: String,
    pub e: String,
    pub crv: String,
    pub x: String,
    pub y: String,
}

/// Public key in the form that its signature algorithm needs.
#[derive(Debug)]
pub enum Verifier {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    EllipticCurve { curve: Curve, point: Vec<u8> },
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Curve {
    P256,
    P384,
    Ed25519,
}

impl Verifier {
    /// Returns the key; `None` if its kind is not supported, or it is too weak.
    pub fn from_jwk(key: &Jwk) -> Option<Self> {
        match (key.kty.as_str(), key.crv.as_str()) {
            ("RSA", _) => {
                let n = decode_base64url(&key.n)?;
                let length = n.iter().skip_while(|byte| **byte == 0).count();
                (length >= MIN_RSA_MODULUS_BYTES).then_some(Self::Rsa { n, e: decode_base64url(&key.e)? })
            }
            ("EC", "P-256") => {
                Self::from_point(Curve::P256, &[&[4], &*decode_base64url(&key.x)?, &*decode_base64url(&key.y)?])
            }
            ("EC", "P-384") => {
                Self::from_point(Curve::P384, &[&[4], &*decode_base64url(&key.x)?, &*decode_base64url(&key.y)?])
            }
            ("OKP", "Ed25519") => Self::from_point(Curve::Ed25519, &[&*decode_base64url(&key.x)?]),
            _ => None,
        }
    }

    fn from_point(curve: Curve, parts: &[&[u8]]) -> Option<Self> {
        let length = match curve {
            Curve::P256 => 65,
            Curve::P384 => 97,
            Curve::Ed25519 => 32,
        };
        let point = parts.concat();
        (point.len() == length).then_some(Self::EllipticCurve { curve, point })
    }

    /// Verifies a signature; `None` if it is not valid, or the algorithm does not fit the key.
    pub fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> Option<()> {
        match self {
            Self::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(rsa_parameters(algorithm)?, message, signature).ok()
            }
            Self::EllipticCurve { curve, point } => {
                let (fits, with): (Curve, &'static dyn VerificationAlgorithm) = match algorithm {
                    "ES256" => (Curve::P256, &signature::ECDSA_P256_SHA256_FIXED),
                    "ES384" => (Curve::P384, &signature::ECDSA_P384_SHA384_FIXED),
                    "EdDSA" => (Curve::Ed25519, &signature::ED25519),
                    _ => return None,
                };
                (fits == *curve).then_some(())?;
                UnparsedPublicKey::new(with, point).verify(message, signature).ok()
            }
        }
    }
}

fn rsa_parameters(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

pub fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text).ok()
}
