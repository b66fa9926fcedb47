//! TLS 1.3 only, from PEM files, with ALPN for HTTP/2 and HTTP/1.1. The files can be reloaded while connections are
//! served.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use headrace_domain::Clock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::client_certificates::ReloadableVerifier;
use crate::tickets::{SessionSecret, SessionTickets};
use crate::{ClientAuthorities, EdgeError, TlsFiles};

/// ALPN name of HTTP/2.
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// ALPN name of HTTP/1.1.
pub(crate) const ALPN_HTTP11: &[u8] = b"http/1.1";

/// The certificate that a listener presents.
#[derive(Debug)]
pub struct TlsCertificate {
    files: TlsFiles,
    current: ArcSwap<CertifiedKey>,
    /// Shared by all listeners with this certificate. `None` if there is no randomness for a secret. Then no session is
    /// resumed.
    tickets: Option<Arc<SessionTickets>>,
    /// Verifies certificates of clients of the API. `None` if none are asked for.
    clients: Option<Arc<ReloadableVerifier>>,
}

impl TlsCertificate {
    /// Reads the files. Sessions are sealed with `secret`, or with a fresh one.
    ///
    /// # Errors
    /// [`EdgeError::Tls`] with the file at fault. Never contains a key's bytes.
    pub(crate) fn read(
        files: &TlsFiles,
        clients: Option<&ClientAuthorities>,
        secret: Option<&SessionSecret>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<Self>, EdgeError> {
        let current = ArcSwap::new(certified(files)?);
        let secret = secret.cloned().or_else(SessionSecret::fresh);
        let tickets = secret.map(|secret| Arc::new(SessionTickets::new(&secret, Arc::clone(clock))));
        let clients = clients.map(ReloadableVerifier::read).transpose()?;
        Ok(Arc::new(Self { files: files.clone(), current, tickets, clients }))
    }

    /// Reads the files again. New connections get the new certificate.
    ///
    /// # Errors
    /// [`EdgeError::Tls`] with the file at fault. The previous files then stay in force.
    pub fn reload(&self) -> Result<(), EdgeError> {
        let current = certified(&self.files)?;
        self.clients.as_ref().map_or(Ok(()), |clients| clients.reload())?;
        self.current.store(current);
        Ok(())
    }

    /// Creates an acceptor for another listener with the same certificate, for HTTP/1.1 only.
    ///
    /// # Errors
    /// [`EdgeError::Tls`] if the library does not support TLS 1.3.
    pub fn http1(self: &Arc<Self>) -> Result<TlsAcceptor, EdgeError> {
        of_protocols(self, vec![ALPN_HTTP11.to_vec()], None)
    }
}

impl TlsFiles {
    /// Checks that both files exist and match.
    ///
    /// # Errors
    /// [`EdgeError::Tls`] with the file at fault.
    pub fn check(&self) -> Result<(), EdgeError> {
        certified(self).map(drop)
    }
}

impl ResolvesServerCert for TlsCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn certified(files: &TlsFiles) -> Result<Arc<CertifiedKey>, EdgeError> {
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fault(&files.cert, &error))?;
    if chain.is_empty() {
        return Err(fault(&files.cert, &"holds no certificate"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| fault(&files.key, &error))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain, key, &provider)
        .map(Arc::new)
        .map_err(|error| fault(&files.cert, &format!("does not go with {}: {error}", files.key.display())))
}

/// Creates an acceptor of TLS connections with this certificate.
///
/// # Errors
/// [`EdgeError::Tls`] if the library does not support TLS 1.3.
pub(crate) fn acceptor(certificate: &Arc<TlsCertificate>) -> Result<TlsAcceptor, EdgeError> {
    let protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP11.to_vec()];
    of_protocols(certificate, protocols, certificate.clients.as_ref())
}

fn of_protocols(
    certificate: &Arc<TlsCertificate>,
    protocols: Vec<Vec<u8>>,
    clients: Option<&Arc<ReloadableVerifier>>,
) -> Result<TlsAcceptor, EdgeError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| fault(&certificate.files.cert, &error))?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(Arc::<ReloadableVerifier>::clone(clients)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::<TlsCertificate>::clone(certificate));
    config.alpn_protocols = protocols;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // A resumed session skips the check of the client's certificate, and would outlast its revocation.
    match certificate.tickets.as_ref().filter(|_| clients.is_none()) {
        Some(tickets) => config.ticketer = Arc::<SessionTickets>::clone(tickets),
        None => config.send_tls13_tickets = 0,
    }
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn fault(file: &Path, detail: &dyn ToString) -> EdgeError {
    EdgeError::Tls { file: file.to_owned(), detail: detail.to_string() }
}
