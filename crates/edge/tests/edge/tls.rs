//! TLS 1.3 with either HTTP version.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{NoTrace, SystemClock};
use headrace_edge::{Edge, EdgeConfig, EdgeError, SessionSecret, TlsFiles};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::stub::{Served, Stub, config, rest, serve};
use crate::{http2, stub};

/// A fresh certificate for `localhost`, written to `folder`.
fn certificate(folder: &Path) -> (TlsFiles, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let files = TlsFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
    std::fs::write(&files.cert, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    (files, made.cert.der().clone())
}

/// A client that trusts a certificate and has its own session cache.
fn client(root: &CertificateDer<'static>, alpn: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(client))
}

async fn connect(
    served: &Served,
    root: &CertificateDer<'static>,
    alpn: &[&str],
) -> TlsStream<tokio::net::TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    client(root, alpn).connect(name, served.connect().await).await.unwrap()
}

#[tokio::test]
async fn both_versions_are_spoken_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (files, root) = certificate(folder.path());
    let mut config = config();
    config.tls = Some(files);
    config.header_timeout = Duration::from_millis(300);
    let served = serve(config).await;

    let tls = connect(&served, &root, &["h2", "http/1.1"]).await;
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(tls.get_ref().1.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    let mut sender = http2::open(tls).await;
    assert_eq!(http2::request(&mut sender, "{}").await.status(), 200);

    for alpn in [&["http/1.1"][..], &[]] {
        let tls = connect(&served, &root, alpn).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection);
        let mut call = http2::call("{}");
        call.headers_mut().insert("host", "a".parse().unwrap());
        assert_eq!(sender.send_request(call).await.unwrap().status(), 200);
    }

    // Neither plain HTTP nor silence gets an answer, and silence is not tolerated for long.
    let plain = served.raw("GET /healthz HTTP/1.1\r\n\r\n").await;
    assert!(!plain.contains("HTTP/1.1"), "{plain:?}");
    let mut silent = served.connect().await;
    silent.write_all(&[0x16]).await.unwrap();
    assert_eq!(rest(&mut silent).await, "");
}

#[tokio::test]
async fn unusable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (good, _) = certificate(folder.path());
    let other = tempfile::tempdir().unwrap();
    let (stranger, _) = certificate(other.path());
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let missing = folder.path().join("missing.pem");
    for (cert, key, at_fault) in [
        (&missing, &good.key, &missing),
        (&empty, &good.key, &empty),
        (&good.cert, &missing, &missing),
        (&good.cert, &empty, &empty),
        (&good.cert, &stranger.key, &good.cert),
    ] {
        let mut config = stub::config();
        config.tls = Some(TlsFiles { cert: cert.clone(), key: key.clone() });
        let bound = Edge::bind(
            config,
            Stub::new(),
            None,
            headrace_edge::no_metrics(),
            Arc::new(NoTrace),
            Arc::new(SystemClock::new()),
        )
        .await;
        match bound {
            Err(EdgeError::Tls { file, .. }) => assert_eq!(&file, at_fault),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("bound with {cert:?} and {key:?}"),
        }
    }
}

/// More than the 256 sessions that rustls stores by default.
const CLIENTS: usize = 300;

/// Each client sends one request over its own connection. Returns how many resumed a session.
async fn resumed(clients: &[TlsConnector], served: &Served) -> usize {
    let mut resumed = 0;
    for client in clients {
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = client.connect(name, served.connect().await).await.unwrap();
        tls.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        // The tickets arrive after the handshake, with the answer.
        tls.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        resumed += usize::from(tls.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed));
    }
    resumed
}

#[tokio::test]
async fn sessions_resume_across_a_reload_and_a_restart_with_the_same_secret_only() {
    let folder = tempfile::tempdir().unwrap();
    let (files, root) = certificate(folder.path());
    let of = |secret: Option<[u8; 32]>, listen| EdgeConfig {
        tls: Some(files.clone()),
        session_secret: secret.map(SessionSecret::new),
        listen,
        ..config()
    };
    let served = serve(of(Some([7; 32]), ([127, 0, 0, 1], 0).into())).await;
    let address = served.address;
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(&root, &["http/1.1"])).collect();
    assert_eq!(resumed(&clients, &served).await, 0);
    assert_eq!(resumed(&clients, &served).await, CLIENTS, "after all others");
    served.certificate.as_ref().unwrap().reload().unwrap();
    assert_eq!(resumed(&clients, &served).await, CLIENTS, "after a reload");
    served.stop().await.unwrap();
    let served = serve(of(Some([7; 32]), address)).await;
    assert_eq!(resumed(&clients, &served).await, CLIENTS, "after a restart");
    // Another server with the same secret, as behind a load balancer.
    let other = serve(of(Some([7; 32]), ([127, 0, 0, 1], 0).into())).await;
    assert_eq!(resumed(&clients, &other).await, CLIENTS, "at another server");
    // A server with another secret, or without one, resumes no session.
    for secret in [Some([8; 32]), None] {
        let stranger = serve(of(secret, ([127, 0, 0, 1], 0).into())).await;
        let few = clients.get(..2).unwrap();
        assert_eq!(resumed(few, &stranger).await, 0);
        assert_eq!(resumed(few, &stranger).await, 2, "its own ones");
    }
}
