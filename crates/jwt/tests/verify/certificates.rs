//! Tokens that are bound to certificates, and clients that a certificate alone names.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_domain::{OrgId, ProjectId};
use headrace_identity::{ModelAccess, RateLimits};
use headrace_jwt::{CertificateRule, CertificateUsers, ShownCertificate, TokenRefusal};
use serde_json::{Value, json};

use crate::provider::{START, SigningKey, World, claims_with, directory, issuer, rule};

const OWN: [u8; 32] = [7; 32];
const OTHER: [u8; 32] = [8; 32];

fn bound_to(hash: [u8; 32]) -> Value {
    json!({ "x5t#S256": URL_SAFE_NO_PAD.encode(hash) })
}

#[tokio::test]
async fn a_bound_token_counts_with_its_certificate_alone() {
    let key = SigningKey::new("k", "ES256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    let bound = key.token("ES256", &claims_with("cnf", bound_to(OWN)));
    let bearer = key.token("ES256", &claims_with("sub", json!("bob")));
    if let Some(wait) = world.tokens.wait_for_keys(&bound, START) {
        wait.await;
    }
    // Twice: the second time from the cache.
    for time in ["first", "second"] {
        for (token, shown, expected) in [
            (&bound, ShownCertificate::Plain(&OWN), None),
            (&bound, ShownCertificate::Credential(&OWN), None),
            (&bound, ShownCertificate::None, Some(TokenRefusal::NoCertificate)),
            (&bound, ShownCertificate::Plain(&OTHER), Some(TokenRefusal::OtherCertificate)),
            (&bound, ShownCertificate::Credential(&OTHER), Some(TokenRefusal::OtherCertificate)),
            (&bearer, ShownCertificate::None, None),
            (&bearer, ShownCertificate::Plain(&OWN), None),
            (&bearer, ShownCertificate::Credential(&OWN), Some(TokenRefusal::TwoCredentials)),
        ] {
            let answer = world.tokens.authenticate_with(token, shown, START);
            assert_eq!(answer.err(), expected, "{time} {shown:?}");
        }
    }
    assert_eq!(world.tokens.authenticate(&bound, START).unwrap_err(), TokenRefusal::NoCertificate);
}

#[tokio::test]
async fn a_binding_that_cannot_be_checked_is_refused() {
    let key = SigningKey::new("k", "ES256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    for confirmation in [
        json!({ "jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I" }),
        json!({ "x5t#S256": "short" }),
        json!({ "x5t#S256": 7 }),
        json!({ "x5t#S256": URL_SAFE_NO_PAD.encode(OWN), "jkt": "x" }),
        json!({}),
        json!("text"),
    ] {
        let token = key.token("ES256", &claims_with("cnf", confirmation.clone()));
        assert_eq!(world.sign_in(&token).await.unwrap_err(), TokenRefusal::Bound, "{confirmation}");
    }
}

fn certificate_rule(name: &str, project: &str) -> CertificateRule {
    CertificateRule {
        names: vec![name.to_owned()],
        org: None,
        project: ProjectId::new(project).unwrap(),
        models: ModelAccess::All,
        limits: RateLimits::default(),
    }
}

#[test]
fn a_name_of_a_certificate_leads_to_its_project() {
    let directory = directory();
    let users = CertificateUsers::new(
        &[certificate_rule("spiffe://acme/agent", "lab"), certificate_rule("dns:a.example.com", "shop")],
        directory,
    );
    let find = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        users.find(&names)
    };
    let agent = find(&["dns:unknown", "spiffe://acme/agent"]).unwrap().unwrap();
    assert_eq!((agent.project.as_str(), agent.name.as_str()), ("lab", "spiffe://acme/agent"));
    assert!(agent.key.as_str().starts_with("user_"));
    let again = find(&["spiffe://acme/agent"]).unwrap().unwrap();
    assert!(std::sync::Arc::ptr_eq(&agent, &again), "built once");
    assert!(find(&[]).is_none() && find(&["spiffe://acme/agent/x", "a.example.com"]).is_none());
    // A project that does not exist, and one of another organisation.
    let org = OrgId::new("other").ok();
    users.replace(&[
        certificate_rule("a:1", "none"),
        CertificateRule { org, ..certificate_rule("a:2", "lab") },
    ]);
    for name in ["a:1", "a:2"] {
        assert!(matches!(find(&[name]), Some(Err(TokenRefusal::NoProject { claim: None }))), "{name}");
    }
    assert!(find(&["spiffe://acme/agent"]).is_none(), "the rules were replaced");
}
