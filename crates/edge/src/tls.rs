//! TLS 1.3 and nothing older, from PEM files, with ALPN for HTTP/2 and HTTP/1.1.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::{EdgeError, TlsFiles};

/// What ALPN calls HTTP/2.
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// What ALPN calls HTTP/1.1.
pub(crate) const ALPN_HTTP11: &[u8] = b"http/1.1";

/// Reads the files.
///
/// # Errors
/// [`EdgeError::Tls`] with the file at fault. Never shows a key's bytes.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, EdgeError> {
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fault(&files.cert, &error))?;
    if chain.is_empty() {
        return Err(fault(&files.cert, &"holds no certificate"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| fault(&files.key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| fault(&files.cert, &error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| fault(&files.cert, &format!("does not go with {}: {error}", files.key.display())))?;
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP11.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn fault(file: &Path, detail: &dyn ToString) -> EdgeError {
    EdgeError::Tls { file: file.to_owned(), detail: detail.to_string() }
}
