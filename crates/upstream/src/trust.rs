//! Which certificates are trusted. For one that is not, explains what the server presented, what was expected, and the
//! way out. Must not know what is sent over a connection.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
};
use rustls_platform_verifier::Verifier;
use webpki::EndEntityCert;

use crate::spec::{UpstreamSpec, UseHttp2};

/// DER tag and bytes of the OID `commonName` (X.520, 2.5.4.3), the human-readable part of a name.
const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];
/// Maximum number of characters of a name in a message.
const MOST_NAME: usize = 100;

/// Builds the TLS client configuration for a spec. It trusts this machine's root certificates and those of `ca_file`.
///
/// # Errors
/// Why it cannot be built. For example, this machine has no root certificates.
pub(crate) fn config(spec: &UpstreamSpec) -> Result<ClientConfig, String> {
    let text = |error: rustls::Error| error.to_string();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(text)?;
    let machine = match &spec.extra_roots_pem {
        Some(pem) => Verifier::new_with_extra_roots(authorities(pem)?, provider),
        None => Verifier::new(provider),
    };
    let verifier = Arc::new(ExplainingVerifier(machine.map_err(text)?));
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let (http2, http1) = (b"h2".to_vec(), b"http/1.1".to_vec());
    config.alpn_protocols = match spec.http2.when {
        UseHttp2::Auto => vec![http2, http1],
        UseHttp2::Off => vec![http1],
        UseHttp2::Always => vec![http2],
    };
    Ok(config)
}

/// Parses the certificates of a PEM text.
///
/// # Errors
/// The text holds no certificate.
pub(crate) fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Option<Vec<_>> = CertificateDer::pem_slice_iter(pem).map(Result::ok).collect();
    let found = found.filter(|found| !found.is_empty());
    found.ok_or_else(|| "the file of the authority holds no certificate in PEM".to_owned())
}

/// Verifies certificates as this machine does, and adds the names in the certificate to a refusal.
#[derive(Debug)]
struct ExplainingVerifier(Verifier);

impl ServerCertVerifier for ExplainingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verified.map_err(|error| match error {
            rustls::Error::InvalidCertificate(fault) => {
                let refused = RefusedCertificate { fault, seen: CertificateNames::of(end_entity) };
                rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refused))))
            }
            other => other,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.0.root_hint_subjects()
    }
}

/// A certificate that was not trusted, and why.
#[derive(Debug)]
pub(crate) struct RefusedCertificate {
    fault: CertificateError,
    /// The names in the certificate. `None` if it cannot be parsed.
    seen: Option<CertificateNames>,
}

/// The names in a certificate.
#[derive(Debug)]
struct CertificateNames {
    subject: String,
    issuer: String,
    signed_itself: bool,
}

impl CertificateNames {
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let read = EndEntityCert::try_from(certificate).ok()?;
        Some(Self {
            subject: common_name(read.subject()),
            issuer: common_name(read.issuer()),
            signed_itself: read.subject() == read.issuer(),
        })
    }
}

/// Returns the common name of a distinguished name in DER (RFC 5280 §4.1.2.4), without control characters, which could
/// deceive a reader.
fn common_name(name: &[u8]) -> String {
    let value = || {
        let at = name.windows(COMMON_NAME.len()).position(|part| part == COMMON_NAME)?;
        let (_tag, rest) = name.get(at + COMMON_NAME.len()..)?.split_first()?;
        let (&length, rest) = rest.split_first()?;
        // Names of 128 bytes or more use another encoding of the length. RFC 5280 allows at most 64 characters.
        rest.get(..usize::from(length))
    };
    let Some(value) = value() else { return "without a common name".to_owned() };
    let text = String::from_utf8_lossy(value);
    let text: String = text.chars().filter(|c| !c.is_control()).take(MOST_NAME).collect();
    format!("`{text}`")
}

impl RefusedCertificate {
    /// Explains what the server at `at` presented, what was expected, and what to do.
    pub(crate) fn explained(&self, at: &str, spec: &UpstreamSpec) -> String {
        let upstream = &spec.name;
        let known = match spec.extra_roots_pem {
            Some(_) => "an authority of this machine or of the file in `ca_file`",
            None => "an authority of this machine",
        };
        let (subject, issuer, signed_itself) = match &self.seen {
            Some(seen) => (seen.subject.as_str(), seen.issuer.as_str(), seen.signed_itself),
            None => ("that cannot be read", "unknown", false),
        };
        match &self.fault {
            CertificateError::UnknownIssuer | CertificateError::BadSignature if signed_itself => format!(
                "{at} shows a certificate that signed itself ({subject}). Expected: one that {known} has signed. If the \
                 certificate is yours, name its PEM file as `ca_file` of upstream `{upstream}`"
            ),
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "{at} shows a certificate ({subject}) of an authority that is unknown here ({issuer}). Expected: one that \
                 {known} has signed. If the authority is yours, name the PEM file with its certificate as `ca_file` of \
                 upstream `{upstream}`"
            ),
            CertificateError::NotValidForNameContext { expected, presented } => {
                let expected = expected.to_str();
                let names = match presented.is_empty() {
                    true => "without a name (subjectAltName)".to_owned(),
                    false => format!("for {}", names(presented)),
                };
                format!(
                    "{at} shows a certificate {names}. Expected: one for `{expected}`, the host in the upstream's address. \
                     Write a name of the certificate into `url` of upstream `{upstream}`, or have the server show a \
                     certificate for `{expected}`"
                )
            }
            CertificateError::ExpiredContext { time, not_after } => format!(
                "{at} shows a certificate ({subject}) that expired at {}. Expected: one that is valid now, {}. Renew the \
                 certificate at the server; if the time is wrong, set the clock of this machine",
                shown(*not_after),
                shown(*time)
            ),
            CertificateError::NotValidYetContext { time, not_before } => format!(
                "{at} shows a certificate ({subject}) that is valid only from {} on. Expected: one that is valid now, {}. If \
                 the time is wrong, set the clock of this machine; otherwise have the server show another certificate",
                shown(*not_before),
                shown(*time)
            ),
            fault if fault.to_string().contains("CaUsedAsEndEntity") => format!(
                "{at} shows a certificate ({subject}) that is made for an authority (CA:TRUE). Expected: one that is made for \
                 a server (CA:FALSE) and that {known} has signed. Issue one for the server with it, and name the PEM file \
                 of this one as `ca_file` of upstream `{upstream}`"
            ),
            fault => format!(
                "{at} shows a certificate ({subject}, signed by {issuer}) that cannot be trusted: {fault}. Expected: one for \
                 the host in `url` that {known} has signed. `ca_file` of upstream `{upstream}` names authorities of your own"
            ),
        }
    }
}

/// Formats names from rustls (`DnsName("a")`) without their kind.
fn names(presented: &[String]) -> String {
    let plain = |name: &String| {
        let inner = name.split_once('(').map_or(name.as_str(), |(_, inner)| inner.trim_end_matches(')'));
        let inner: String =
            inner.trim_matches('"').chars().filter(|c| !c.is_control()).take(MOST_NAME).collect();
        format!("`{inner}`")
    };
    let mut shown: Vec<String> = presented.iter().take(4).map(plain).collect();
    if presented.len() > shown.len() {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}

fn shown(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "no time".to_owned(), |time| time.to_string())
}

impl fmt::Display for RefusedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

impl Error for RefusedCertificate {}
