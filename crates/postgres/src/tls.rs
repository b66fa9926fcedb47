//! TLS to the database: the certificate must name the host and come from a trusted authority. Must not know what is sent.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Returns a connector that trusts the authorities of a PEM file, or those of this machine.
///
/// # Errors
/// Returns why it cannot be built, for example because the file holds no certificate.
pub(crate) fn connector(roots: Option<&Path>) -> Result<MakeRustlsConnect, String> {
    let text = |error: rustls::Error| error.to_string();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(text)?;
    let config = match roots {
        Some(path) => builder.with_root_certificates(authorities(path)?).with_no_client_auth(),
        None => {
            let machine = rustls_platform_verifier::Verifier::new(provider).map_err(text)?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(machine)).with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let pem = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let none = || format!("{} holds no certificate in PEM", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| none())?;
        roots.add(certificate).map_err(|_| none())?;
    }
    if roots.is_empty() { Err(none()) } else { Ok(roots) }
}
