//! TLS: whose certificates are trusted, HTTP/2 by agreement, and what is told where the scheme is wrong.

use std::sync::Arc;

use headrace_hostile::Hostile;
use headrace_upstream::{Kind, Upstream};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::calls::{all, chat, failure, spec};

/// TLS before a server; gives its port and the certificate in PEM.
async fn tls_before(hostile: &Hostile) -> (u16, Vec<u8>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, behind) = (listener.local_addr().unwrap().port(), hostile.address());
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
    (port, cert.pem().into_bytes())
}

#[tokio::test]
async fn a_certificate_is_trusted_where_its_root_is_configured() {
    let hostile = Hostile::start().await.unwrap();
    let (port, pem) = tls_before(&hostile).await;
    let mut trusting = spec(&format!("https://localhost:{port}"), Kind::Vllm);
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

/// A server that reads something and answers always the same. Gives its port.
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

/// What most servers of TLS answer to plain HTTP, and the other way round.
#[tokio::test]
async fn the_wrong_scheme_is_told() {
    let refusal = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.";
    let plain = format!("http://localhost:{}", answering(refusal).await);
    let error = Upstream::new(spec(&plain, Kind::Vllm)).unwrap().models().await.unwrap_err();
    assert!(error.to_string().ends_with("(write https:// in its address)"), "{error}");
    let alert = format!("http://localhost:{}", answering("\u{15}\u{3}\u{1}\0\u{2}\u{2}\u{46}\0\0").await);
    let error = failure(&Upstream::new(spec(&alert, Kind::Vllm)).unwrap(), chat("good", true)).await;
    assert!(error.to_string().contains("speak https"), "{error}");
    let tls = format!("https://localhost:{}", answering("HTTP/1.1 400 Bad Request\r\n\r\n").await);
    let error = failure(&Upstream::new(spec(&tls, Kind::Vllm)).unwrap(), chat("good", true)).await;
    assert!(error.to_string().contains("does it speak plain http?"), "{error}");
}
