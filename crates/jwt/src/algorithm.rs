//! The signature algorithms that are accepted (RFC 7518, RFC 8037): all asymmetric. `none` and HMAC are no members, so
//! no token can select them. Must not know keys or tokens.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, EcdsaVerificationAlgorithm,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
};

/// A signature algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureAlgorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    /// Ed25519.
    EdDsa,
}

use SignatureAlgorithm::{EdDsa, Es256, Es384, Es512, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};

impl SignatureAlgorithm {
    /// The algorithms of RSA keys.
    pub(crate) const OF_RSA: [Self; 6] = [Rs256, Rs384, Rs512, Ps256, Ps384, Ps512];

    /// Returns the algorithm with this name in `alg`. `Ed25519` is the newer name of `EdDSA` (RFC 9864).
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Rs256,
            "RS384" => Rs384,
            "RS512" => Rs512,
            "PS256" => Ps256,
            "PS384" => Ps384,
            "PS512" => Ps512,
            "ES256" => Es256,
            "ES384" => Es384,
            "ES512" => Es512,
            "EdDSA" | "Ed25519" => EdDsa,
            _ => return None,
        })
    }

    /// The parameters of an RSA algorithm. The key must have 2,048 to 8,192 bits.
    pub(crate) const fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Rs256 => &RSA_PKCS1_2048_8192_SHA256,
            Rs384 => &RSA_PKCS1_2048_8192_SHA384,
            Rs512 => &RSA_PKCS1_2048_8192_SHA512,
            Ps256 => &RSA_PSS_2048_8192_SHA256,
            Ps384 => &RSA_PSS_2048_8192_SHA384,
            Ps512 => &RSA_PSS_2048_8192_SHA512,
            Es256 | Es384 | Es512 | EdDsa => return None,
        })
    }

    /// The algorithm of the curve `crv`, its parameters, and the length of a coordinate in bytes.
    pub(crate) fn of_curve(crv: &str) -> Option<(Self, &'static EcdsaVerificationAlgorithm, usize)> {
        Some(match crv {
            "P-256" => (Es256, &ECDSA_P256_SHA256_FIXED, 32),
            "P-384" => (Es384, &ECDSA_P384_SHA384_FIXED, 48),
            "P-521" => (Es512, &ECDSA_P521_SHA512_FIXED, 66),
            _ => return None,
        })
    }
}
