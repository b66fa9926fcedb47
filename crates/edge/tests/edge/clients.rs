//! Client certificates: which are accepted, what is passed on of them, and that no session is resumed.

use std::path::Path;
use std::sync::Arc;

use headrace_edge::{ClientAuthorities, EdgeConfig, EdgeError, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::stub::{Served, config, serve};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate of a client with a URI name and a DNS name, and its key.
struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn by(authority: &Authority, serial: u64) -> Self {
        let mut params = CertificateParams::new(vec!["Agent.example.com".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://acme/agent".try_into().unwrap()));
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, authority).unwrap().der().clone();
        Self { certificate, key: PrivateKeyDer::try_from(key.serialize_der()).unwrap() }
    }
}

/// Revocation lists in PEM that revoke these serial numbers and expire in this year.
fn revoking(authority: &Authority, serials: &[u64], year: i32) -> String {
    let revoked = |serial: &u64| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: date_time_ymd(2020, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(year, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(authority).unwrap().pem().unwrap()
}

/// A folder with the server's certificate and the authority's.
struct Folder {
    folder: tempfile::TempDir,
    root: CertificateDer<'static>,
    tls: TlsFiles,
}

impl Folder {
    fn new(authority: &Authority) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let path = |name: &str| folder.path().join(name);
        let tls = TlsFiles { cert: path("cert.pem"), key: path("key.pem") };
        std::fs::write(&tls.cert, made.cert.pem()).unwrap();
        std::fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("ca.pem"), authority.pem()).unwrap();
        Self { root: made.cert.der().clone(), tls, folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn config(&self, is_required: bool, revocations: bool) -> EdgeConfig {
        let revocations = revocations.then(|| self.path().join("crl.pem"));
        let authorities = self.path().join("ca.pem");
        let client_authorities = Some(ClientAuthorities { authorities, revocations, is_required });
        EdgeConfig { tls: Some(self.tls.clone()), client_authorities, ..config() }
    }

    fn client(&self, identity: Option<&Identity>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let client = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                builder.with_client_auth_cert(vec![certificate.clone()], key.clone_key()).unwrap()
            }
        };
        TlsConnector::from(Arc::new(client))
    }
}

/// Makes a call. Returns the answer's status line, or the error of the connection.
async fn call(served: &Served, client: &TlsConnector) -> Result<String, String> {
    let name = ServerName::try_from("localhost").unwrap();
    let tls = client.connect(name, served.connect().await).await;
    let mut tls = tls.map_err(|error| error.to_string())?;
    let request = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer good\r\n\
                   content-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    tls.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    let read = tls.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    match text.lines().next() {
        Some(line) => Ok(line.to_owned()),
        None => Err(read.map_or_else(|error| error.to_string(), |_| "closed".to_owned())),
    }
}

#[tokio::test]
async fn names_and_hash_of_a_certificate_are_passed_on() {
    let authority = authority();
    let folder = Folder::new(&authority);
    let served = serve(folder.config(false, false)).await;
    let identity = Identity::by(&authority, 1);
    assert_eq!(call(&served, &folder.client(Some(&identity))).await.unwrap(), "HTTP/1.1 200 OK");
    let shown = served.stub.certificate.lock().unwrap().clone().unwrap();
    assert_eq!(shown.names, ["spiffe://acme/agent", "dns:agent.example.com"]);
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &identity.certificate);
    assert_eq!(shown.sha256, hash.as_ref());
    assert_eq!(call(&served, &folder.client(None)).await.unwrap(), "HTTP/1.1 200 OK", "it is optional");
    assert_eq!(*served.stub.certificate.lock().unwrap(), None, "of its own connection alone");
}

#[tokio::test]
async fn a_listener_that_requires_a_certificate_serves_no_client_without_one() {
    let (authority, stranger) = (authority(), authority());
    let folder = Folder::new(&authority);
    let served = serve(folder.config(true, false)).await;
    let own = folder.client(Some(&Identity::by(&authority, 1)));
    assert!(call(&served, &own).await.is_ok());
    let without = call(&served, &folder.client(None)).await.unwrap_err();
    assert!(without.contains("CertificateRequired"), "{without}");
    let foreign = call(&served, &folder.client(Some(&Identity::by(&stranger, 1)))).await.unwrap_err();
    assert!(foreign.contains("UnknownCA") || foreign.contains("DecryptError"), "{foreign}");
    assert_eq!(served.stub.calls.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_from_the_next_connection_on() {
    let authority = authority();
    let folder = Folder::new(&authority);
    let write = |serials: &[u64], year| {
        std::fs::write(folder.path().join("crl.pem"), revoking(&authority, serials, year)).unwrap();
    };
    write(&[9], 2099);
    let served = serve(folder.config(false, true)).await;
    let client = folder.client(Some(&Identity::by(&authority, 7)));
    assert!(call(&served, &client).await.is_ok());
    write(&[7, 9], 2099);
    let certificate = served.certificate.as_ref().unwrap();
    certificate.reload().unwrap();
    // The same client, with the session of its first connection, if it had got one.
    let revoked = call(&served, &client).await.unwrap_err();
    assert!(revoked.contains("CertificateRevoked"), "{revoked}");
    // A list that has expired proves nothing.
    write(&[], 2021);
    certificate.reload().unwrap();
    assert!(call(&served, &client).await.is_err());
    // A damaged list leaves the former one in force.
    std::fs::write(folder.path().join("crl.pem"), "nonsense").unwrap();
    let fault = certificate.reload().unwrap_err();
    assert!(fault.to_string().contains("crl.pem"), "{fault}");
    assert!(call(&served, &client).await.is_err());
    write(&[9], 2099);
    certificate.reload().unwrap();
    assert!(call(&served, &client).await.is_ok());
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named() {
    let authority = authority();
    let folder = Folder::new(&authority);
    std::fs::write(folder.path().join("crl.pem"), authority.pem()).unwrap();
    let Some(files) = folder.config(false, true).client_authorities else { panic!("it has files") };
    let why = |files: &ClientAuthorities| match files.check() {
        Err(EdgeError::Tls { file, detail }) => format!("{}: {detail}", file.display()),
        other => format!("{other:?}"),
    };
    assert!(why(&files).contains("crl.pem: holds no revocation list"), "{}", why(&files));
    let missing = ClientAuthorities { authorities: folder.path().join("none.pem"), ..files };
    assert!(why(&missing).contains("none.pem: "), "{}", why(&missing));
}
