//! TLS for connections to servers: the trusted authorities, and the start of each handshake. Must not know what is sent
//! over it.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::ClientError;
use crate::connect::TimedSessions;

/// A TLS client configuration that trusts the system's authorities, or those of a PEM text instead.
///
/// # Errors
/// [`ClientError::Config`] if the text has no certificate, or the system has no authorities.
pub(crate) fn config(ca_pem: Option<&[u8]>) -> Result<ClientConfig, ClientError> {
    let refused = |error: rustls::Error| ClientError::Config(error.to_string());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(refused)?;
    let mut config = match ca_pem {
        Some(pem) => builder.with_root_certificates(authorities(pem)?).with_no_client_auth(),
        None => {
            let machine = rustls_platform_verifier::Verifier::new(provider).map_err(refused)?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(machine)).with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = rustls::client::Resumption::store(Arc::new(TimedSessions::new()));
    Ok(config)
}

/// The number of certificates in a PEM text: 0 if a block of it is cut or damaged. `None` if a certificate cannot be decoded.
pub fn count_authorities(pem: &[u8]) -> Option<usize> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let Ok(certificate) = certificate else { return Some(0) };
        roots.add(certificate).ok()?;
    }
    Some(roots.len())
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, ClientError> {
    let none = || ClientError::Config("the file of the authority holds no certificate in PEM".to_owned());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| none())?;
        roots.add(certificate).map_err(|_| none())?;
    }
    if roots.is_empty() { Err(none()) } else { Ok(roots) }
}
