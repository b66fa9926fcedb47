//! TLS errors are explained in plain words with a remedy, and a self-made certificate works with `--ca`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::Path;

use common::{Server, program, said};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

const KEY: &str = "sk-tls-test-0123456789abcdefghijkl";

/// Writes a self-signed certificate.
fn certify(dir: &Path, is_ca: IsCa) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = is_ca;
    let key = KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    std::fs::write(dir.join("cert.pem"), made.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
}

/// Starts a server with such a certificate.
fn server(dir: &Path, is_ca: IsCa) -> Server {
    certify(dir, is_ca);
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let flags = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).arg("up");
    Server::begin(command, &dir.join("data"), &flags, KEY)
}

/// Whether `chat` and `bench` succeed at a server, and their messages.
fn ask(url: &str, more: &[&str]) -> [(bool, String); 2] {
    let run = |args: &[&str]| {
        let output = program()
            .env("HEADRACE_API_KEY", KEY)
            .args(args)
            .args(["--url", url])
            .args(more)
            .output()
            .unwrap();
        (output.status.success(), said(&output))
    };
    [run(&["chat", "--max-tokens", "4", "Hello"]), run(&["bench", "--requests", "2", "--output-tokens", "4"])]
}

fn refused(url: &str, more: &[&str], expected: &str) {
    for (done, said) in ask(url, more) {
        assert!(!done && said.contains(expected), "{url}: {expected}\n{said}");
        for jargon in ["Is it running?", "OtherError", "InvalidContentType", "UnknownIssuer"] {
            assert!(!said.contains(jargon), "{url}: {jargon}\n{said}");
        }
    }
}

#[test]
fn an_own_certificate_works_with_ca_and_its_absence_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(dir.path(), IsCa::ExplicitNoCa);
    let port = server.address().port();
    let (https, http) = (format!("https://localhost:{port}"), format!("http://localhost:{port}"));
    let ca = dir.path().join("cert.pem");
    refused(&https, &[], "of an authority that is not known here");
    refused(&https, &[], "--ca FILE");
    for (done, said) in ask(&https, &["--ca", ca.to_str().unwrap()]) {
        assert!(done, "{said}");
    }
    refused(&format!("https://127.0.0.1:{port}"), &["--ca", ca.to_str().unwrap()], "for another name");
    refused(&http, &[], &format!("it is {https}"));
    let text = dir.path().join("text");
    std::fs::write(&text, "no certificate").unwrap();
    refused(&https, &["--ca", text.to_str().unwrap()], "holds no certificate in PEM");
    refused(&https, &["--ca", "/does/not/exist"], "--ca: cannot read /does/not/exist");
    server.stop();
}

/// A client whose single connection stays open between calls.
struct Open {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    url: String,
}

impl Open {
    fn to(server: &Server, ca: &str) -> Self {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(ca).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let url = format!("https://localhost:{}/v1/models", server.address().port());
        Self { runtime: runtime.unwrap(), client, url }
    }

    fn ask(&self) -> u16 {
        let asked = self.client.get(&self.url).bearer_auth(KEY).send();
        self.runtime.block_on(async { asked.await.unwrap() }).status().as_u16()
    }
}

#[test]
fn a_service_shows_its_renewed_certificate_after_sighup() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path(), IsCa::ExplicitNoCa);
    let of = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let files = format!("tls_cert = {:?}\ntls_key = {:?}\n", of("cert.pem"), of("key.pem"));
    let text = format!("[server]\n{files}[reload]\nwatch = \"0s\"\n");
    let mut server = Server::serve(dir.path(), &text, Some(KEY));
    let https = format!("https://localhost:{}", server.address().port());
    std::fs::copy(of("cert.pem"), of("former.pem")).unwrap();
    // A renewal that is only half done: the key belongs to another certificate.
    let whole = std::fs::read(of("key.pem")).unwrap();
    std::fs::write(of("key.pem"), "no key").unwrap();
    // Reloads happen by command and by signal; the files are not watched.
    let reload = |server: &Server| server.command(&["reload"]);
    let refusal = reload(&server);
    assert!(!refusal.status.success() && said(&refusal).contains("server.tls_key"), "{}", said(&refusal));
    assert!(ask(&https, &["--ca", &of("former.pem")])[0].0, "the former one stays");
    std::fs::write(of("key.pem"), whole).unwrap();
    // An open connection stays open, even if new connections get another certificate.
    let open = Open::to(&server, &of("former.pem"));
    assert_eq!(open.ask(), 200);
    certify(dir.path(), IsCa::ExplicitNoCa);
    server.signal("HUP");
    server.until_said("SIGHUP: ");
    assert_eq!(open.ask(), 200);
    let [(done, said), _] = ask(&https, &["--ca", &of("cert.pem")]);
    assert!(done, "{said}");
    refused(&https, &["--ca", &of("former.pem")], "shows a certificate");
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        log.contains("the former one stays in force, unchanged")
            && log.contains("SIGHUP: the configuration is read again"),
        "{log}"
    );
}

#[test]
fn a_certificate_of_an_authority_is_told_how_to_become_a_server_s() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = server(dir.path(), IsCa::Ca(BasicConstraints::Unconstrained));
    let https = format!("https://localhost:{}", server.address().port());
    let ca = dir.path().join("cert.pem");
    refused(&https, &["--ca", ca.to_str().unwrap()], "CA:FALSE");
    server.stop();
}

#[test]
fn addresses_of_the_wrong_kind_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &[]);
    let address = server.address().to_string();
    refused(&format!("https://{address}"), &[], &format!("answers without TLS: it is http://{address}"));
    refused("example.com:8080", &[], "write http:// or https:// before it");
    let shown = program()
        .env("HEADRACE_API_KEY", &server.key)
        .args(["chat", "--url", &address, "--max-tokens", "4", "Hello"])
        .output();
    let shown = shown.unwrap();
    assert!(shown.status.success(), "this machine's own needs no scheme: {}", said(&shown));
    server.stop();
}

/// The status of a page over a new connection. `None` if no trusted server answered.
fn page(url: &str, ca: &str) -> Option<u16> {
    let ca = reqwest::Certificate::from_pem(&std::fs::read(ca).unwrap()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async { client.get(url).send().await });
    answer.ok().map(|answer| answer.status().as_u16())
}

#[test]
fn operators_are_listened_to_by_the_same_certificate_and_a_reload_renews_it_for_them() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path(), IsCa::ExplicitNoCa);
    let of = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!(
        "[server]\ntls_cert = {:?}\ntls_key = {:?}\n[admin]\nlisten = \"127.0.0.1:{free}\"\ntls = true\n[reload]\nwatch = \"0s\"\n",
        of("cert.pem"),
        of("key.pem")
    );
    let mut server = Server::serve(dir.path(), &text, Some(KEY));
    let tour = format!("https://localhost:{free}/docs/tour");
    assert_eq!(page(&tour, &of("cert.pem")), Some(200));
    assert_eq!(
        page(&format!("http://localhost:{free}/docs/tour"), &of("cert.pem")),
        None,
        "nothing in clear"
    );
    std::fs::copy(of("cert.pem"), of("former.pem")).unwrap();
    certify(dir.path(), IsCa::ExplicitNoCa);
    let done = server.command(&["reload"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(page(&tour, &of("cert.pem")), Some(200));
    assert_eq!(page(&tour, &of("former.pem")), None, "the former one is not shown any longer");
    server.stop();
}
