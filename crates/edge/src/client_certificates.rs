//! Certificates of clients (RFC 8446 §4.4.2): whether a listener asks for one, its authorities and revocation lists, and
//! what is passed on of it. The files can be read again while connections are served. Must not know which caller a
//! name belongs to.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA256, digest};
use headrace_call_api::ClientCertificate;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use webpki::EndEntityCert;

use crate::config::{ClientAuthorities, EdgeError};

/// Maximum number of names of a certificate that are passed on.
const MAX_NAMES: usize = 32;

impl ClientAuthorities {
    /// Checks that the files can be used.
    ///
    /// # Errors
    /// [`EdgeError::Tls`] with the file at fault.
    pub fn check(&self) -> Result<(), EdgeError> {
        verifier(self).map(drop)
    }
}

/// Verifies certificates with the files as they were last read.
pub(crate) struct ReloadableVerifier {
    files: ClientAuthorities,
    current: ArcSwap<BoxedVerifier>,
}

/// A verifier as a sized type.
struct BoxedVerifier(Arc<dyn ClientCertVerifier>);

impl ReloadableVerifier {
    pub(crate) fn read(files: &ClientAuthorities) -> Result<Arc<Self>, EdgeError> {
        let current = ArcSwap::from_pointee(BoxedVerifier(verifier(files)?));
        Ok(Arc::new(Self { files: files.clone(), current }))
    }

    /// Reads the files again. New connections are checked by the new ones.
    ///
    /// # Errors
    /// [`EdgeError::Tls`] with the file at fault. The former ones then stay.
    pub(crate) fn reload(&self) -> Result<(), EdgeError> {
        self.current.store(Arc::new(BoxedVerifier(verifier(&self.files)?)));
        Ok(())
    }
}

impl fmt::Debug for ReloadableVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadableVerifier").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for ReloadableVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.files.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Hints would have to be borrowed from files that may be replaced. Without them, clients choose by themselves.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.current.load().0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().0.supported_verify_schemes()
    }
}

fn verifier(files: &ClientAuthorities) -> Result<Arc<dyn ClientCertVerifier>, EdgeError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.authorities)? {
        roots.add(authority).map_err(|error| fault(&files.authorities, &error))?;
    }
    if roots.is_empty() {
        return Err(fault(&files.authorities, &"holds no certificate in PEM"));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let mut named = &files.authorities;
    if let Some(path) = &files.revocations {
        let lists = CertificateRevocationListDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| fault(path, &error))?;
        if lists.is_empty() {
            return Err(fault(path, &"holds no revocation list in PEM (`-----BEGIN X509 CRL-----`)"));
        }
        // A list that is no longer current is no proof that a certificate is good.
        builder = builder.with_crls(lists).enforce_revocation_expiration();
        named = path;
    }
    if !files.is_required {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| fault(named, &error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EdgeError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fault(path, &error))
}

/// What is passed on of a verified certificate: its names, URIs as they are and host names after `dns:`, and its
/// SHA-256.
pub(crate) fn client_certificate(certificate: &CertificateDer<'_>) -> Option<ClientCertificate> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let uris = parsed.valid_uri_names().map(str::to_owned);
    let hosts = parsed.valid_dns_names().map(|host| format!("dns:{}", host.to_ascii_lowercase()));
    let names = uris.chain(hosts).take(MAX_NAMES).collect();
    let sha256 = <[u8; 32]>::try_from(digest(&SHA256, certificate).as_ref()).ok()?;
    Some(ClientCertificate { names, sha256 })
}

fn fault(file: &Path, detail: &dyn ToString) -> EdgeError {
    EdgeError::Tls { file: file.to_owned(), detail: detail.to_string() }
}
