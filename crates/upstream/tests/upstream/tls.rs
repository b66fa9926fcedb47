//! TLS: trusted certificates, negotiation of HTTP/2, and the error for a wrong scheme.

use std::sync::Arc;

use headrace_fault_server::FaultServer;
use headrace_upstream::{Upstream, UpstreamKind};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CertifiedKey, DnType, IsCa, KeyPair, date_time_ymd,
    generate_simple_self_signed,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::calls::{all, chat, failure, spec};

/// Puts TLS in front of a server. Returns the port and the certificate in PEM.
async fn tls_before(fault_server: &FaultServer) -> (u16, Vec<u8>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    (showing(&cert, &signing_key, fault_server.address()).await, cert.pem().into_bytes())
}

/// Puts TLS with a given certificate in front of an address. Returns the port.
async fn showing(cert: &rcgen::Certificate, key: &KeyPair, behind: std::net::SocketAddr) -> u16 {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut outside = acceptor.accept(stream).await?;
                let mut inside = TcpStream::connect(behind).await?;
                tokio::io::copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });
    port
}

/// Calls a server that presents a certificate. Returns the error that the caller of the upstream receives.
async fn told(cert: &rcgen::Certificate, key: &KeyPair, roots: Option<String>) -> String {
    let nowhere = ([127, 0, 0, 1], 9).into();
    let port = showing(cert, key, nowhere).await;
    let mut asked = spec(&format!("https://localhost:{port}"), UpstreamKind::Vllm);
    asked.extra_roots_pem = roots.map(String::into_bytes);
    let upstream = Upstream::new(asked).unwrap();
    let error = failure(&upstream, chat("good", true)).await.to_string();
    // A probe has the same message.
    assert!(upstream.models().await.unwrap_err().to_string().contains("Expected: "), "{error}");
    for jargon in ["UnknownIssuer", "NotValidForName", "invalid peer certificate", "OtherError"] {
        assert!(!error.contains(jargon), "{jargon}: {error}");
    }
    error.replace(&format!("localhost:{port}"), "HOST")
}

#[track_caller]
fn says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is missing: {error}");
    }
}

fn params(subject: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, subject);
    params
}

#[tokio::test]
async fn a_private_certificate_is_told_with_what_was_seen_what_was_expected_and_the_way_out() {
    let of_ca = || {
        let mut ca = params("Corp Root", &[]);
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca
    };
    let ca = CertifiedIssuer::self_signed(of_ca(), KeyPair::generate().unwrap()).unwrap();
    let other = CertifiedIssuer::self_signed(of_ca(), KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let signed = |params: CertificateParams| params.signed_by(&key, &ca).unwrap();
    let way_out = "`ca_file` of upstream `fault-server`";

    let good = signed(params("gpu", &["localhost"]));
    let error = told(&good, &key, None).await;
    says(
        &error,
        &["HOST shows a certificate (`gpu`) of an authority that is unknown here (`Corp Root`)", way_out],
    );
    says(&error, &["Expected: one that an authority of this machine has signed"]);
    // Another authority with the same name.
    let error = told(&good, &key, Some(other.pem())).await;
    says(&error, &["unknown here (`Corp Root`)", "or of the file in `ca_file`", way_out]);

    let own = params("lonely", &["localhost"]).self_signed(&key).unwrap();
    let error = told(&own, &key, None).await;
    says(&error, &["HOST shows a certificate that signed itself (`lonely`)", way_out]);

    let mut authority = params("both", &["localhost"]);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = authority.self_signed(&key).unwrap();
    let error = told(&authority, &key, Some(authority.pem())).await;
    says(&error, &["(`both`) that is made for an authority (CA:TRUE)", "CA:FALSE", way_out]);

    let error = told(&signed(params("gpu", &["gpu.corp", "10.0.0.7"])), &key, Some(ca.pem())).await;
    says(&error, &["HOST shows a certificate for `gpu.corp`", "10.0.0.7", "Expected: one for `localhost`"]);
    says(&error, &["`url` of upstream `fault-server`"]);
    let error = told(&signed(params("gpu", &[])), &key, Some(ca.pem())).await;
    says(&error, &["HOST shows a certificate without a name", "Expected: one for `localhost`"]);

    let mut old = params("gpu", &["localhost"]);
    (old.not_before, old.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 2, 3));
    let error = told(&signed(old), &key, Some(ca.pem())).await;
    says(&error, &["(`gpu`) that expired at 2021-02-03T00:00:00Z", "Renew the certificate", "clock"]);
    let mut early = params("gpu", &["localhost"]);
    (early.not_before, early.not_after) = (date_time_ymd(4000, 1, 1), date_time_ymd(4001, 1, 1));
    let error = told(&signed(early), &key, Some(ca.pem())).await;
    says(&error, &["valid only from 4000-01-01T00:00:00Z on", "clock"]);
}

#[tokio::test]
async fn where_no_way_leads_to_a_server_the_environments_proxies_are_said_to_be_unused() {
    let refused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for scheme in ["http", "https"] {
        let mut asked = spec(&format!("{scheme}://nothing.invalid"), UpstreamKind::Vllm);
        let error = failure(&Upstream::new(asked.clone()).unwrap(), chat("good", true)).await.to_string();
        says(
            &error,
            &[
                "cannot be resolved",
                "set `proxy` of upstream `fault-server`",
                "HTTPS_PROXY, https_proxy and ALL_PROXY",
            ],
        );
        asked.unused_proxy = Some("https_proxy");
        let error = failure(&Upstream::new(asked.clone()).unwrap(), chat("good", true)).await.to_string();
        says(
            &error,
            &["cannot be resolved", "https_proxy is set here, but", "set `proxy` of upstream `fault-server`"],
        );
        asked.url = format!("{scheme}://{refused}");
        let error = failure(&Upstream::new(asked.clone()).unwrap(), chat("good", true)).await.to_string();
        says(&error, &["connection refused", "https_proxy is set here, but"]);
        asked.proxy = Some(format!("http://{refused}").into());
        let error = failure(&Upstream::new(asked.clone()).unwrap(), chat("good", true)).await.to_string();
        assert!(!error.contains("https_proxy"), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_is_trusted_where_its_root_is_configured() {
    let fault_server = FaultServer::start().await.unwrap();
    let (port, pem) = tls_before(&fault_server).await;
    let mut trusting = spec(&format!("https://localhost:{port}"), UpstreamKind::Vllm);
    trusting.extra_roots_pem = Some(pem);
    let events = all(&Upstream::new(trusting.clone()).unwrap(), chat("good", true)).await;
    assert!(events.len() > 3, "{events:?}");
    trusting.extra_roots_pem = None;
    let error = failure(&Upstream::new(trusting).unwrap(), chat("good", true)).await;
    assert!(
        error.to_string().starts_with("no connection: ") && error.to_string().contains("certificate"),
        "{error}"
    );
}

#[tokio::test]
async fn one_of_several_addresses_is_reached_by_the_name() {
    let fault_server = FaultServer::start().await.unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = params("gpu", &["gpu.test"]).self_signed(&key).unwrap();
    let port = showing(&cert, &key, fault_server.address()).await;
    // No DNS server knows this name. The certificate is still checked against it.
    let mut pinned = spec(&format!("https://gpu.test:{port}"), UpstreamKind::Vllm);
    pinned.extra_roots_pem = Some(cert.pem().into_bytes());
    let pinned = pinned.at([127, 0, 0, 1].into());
    assert_eq!(pinned.label(), "fault-server@127.0.0.1");
    let events = all(&Upstream::new(pinned.clone()).unwrap(), chat("good", true)).await;
    assert!(events.len() > 3, "{events:?}");
    let mut clear = spec(&format!("http://gpu.test:{}", fault_server.address().port()), UpstreamKind::Vllm);
    clear.cache_feed = None;
    let events = all(&Upstream::new(clear.at([127, 0, 0, 1].into())).unwrap(), chat("good", true)).await;
    assert!(events.len() > 3, "{events:?}");
    let hosts: Vec<_> = fault_server
        .seen()
        .requests
        .iter()
        .filter_map(|request| {
            let host = request.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
            host.map(|(_, value)| value.clone())
        })
        .collect();
    assert!(!hosts.is_empty() && hosts.iter().all(|host| host.starts_with("gpu.test:")), "{hosts:?}");
}

/// Starts a server that reads some bytes and always sends the same answer. Returns its port.
pub(crate) async fn answering(answer: impl AsRef<[u8]> + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        if stream.read(&mut [0; 4096]).await? > 0 {
            stream.write_all(answer.as_ref()).await?;
        }
        stream.shutdown().await
    });
    port
}

/// The usual answers of a TLS server to plain HTTP, and of a plain server to TLS.
#[tokio::test]
async fn the_wrong_scheme_is_told() {
    let refusal = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.";
    let plain = format!("http://localhost:{}", answering(refusal).await);
    let error = Upstream::new(spec(&plain, UpstreamKind::Vllm)).unwrap().models().await.unwrap_err();
    assert!(error.to_string().ends_with("(write https:// in its address)"), "{error}");
    let alert = format!("http://localhost:{}", answering("\u{15}\u{3}\u{1}\0\u{2}\u{2}\u{46}\0\0").await);
    let error = failure(&Upstream::new(spec(&alert, UpstreamKind::Vllm)).unwrap(), chat("good", true)).await;
    assert!(error.to_string().contains("speak https"), "{error}");
    let tls = format!("https://localhost:{}", answering("HTTP/1.1 400 Bad Request\r\n\r\n").await);
    let error = failure(&Upstream::new(spec(&tls, UpstreamKind::Vllm)).unwrap(), chat("good", true)).await;
    assert!(error.to_string().contains("does it speak plain http?"), "{error}");
}
