//! Tokens that are bound to certificates, and clients that a certificate alone names.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_domain::{OrgId, ProjectId};
use headrace_identity::{KeyEnd, ModelAccess, RateLimits};
use headrace_jwt::{CertificateHolder, CertificateRule, CertificateUsers, ShownCertificate, TokenRefusal};
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
        holder: CertificateHolder::Project(ProjectId::new(project).unwrap()),
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

#[test]
fn a_name_of_a_certificate_leads_to_its_service_account_while_that_is_active() {
    let directory = directory();
    let account = |project: &str, name: &str| {
        let project = ProjectId::new(project).unwrap();
        directory.create_service_account(project, name, "test", START).unwrap()
    };
    let (ci, _) = (account("lab", "ci"), account("lab", "deploy"));
    account("theirs", "deploy");
    let rule = |name: &str, account: &str, org: Option<&str>| CertificateRule {
        holder: CertificateHolder::ServiceAccount(account.to_owned()),
        org: org.map(|org| OrgId::new(org).unwrap()),
        ..certificate_rule(name, "lab")
    };
    let rules = [
        rule("spiffe://acme/ci", "ci", Some("acme")),
        rule("dns:ci.example.com", ci.id.as_str(), None),
        rule("a:both", "deploy", None),
        rule("a:one", "deploy", Some("acme")),
        rule("a:none", "none", None),
        rule("a:foreign", ci.id.as_str(), Some("other")),
    ];
    let users = CertificateUsers::new(&rules, std::sync::Arc::clone(&directory));
    let find = |name: &str| users.find(&[name.to_owned()]).unwrap();
    let [by_name, by_id] = ["spiffe://acme/ci", "dns:ci.example.com"].map(|name| find(name).unwrap());
    assert_eq!((by_name.key.as_str(), &by_name.key), (ci.id.as_str(), &by_id.key), "they share their limits");
    assert_eq!((by_name.name.as_str(), by_name.project.as_str()), ("ci", "lab"));
    assert_eq!(by_name.user.as_ref().unwrap().subject.as_ref(), "spiffe://acme/ci");
    assert_eq!(find("a:one").unwrap().org.as_str(), "acme");
    for name in ["a:both", "a:none", "a:foreign"] {
        assert_eq!(find(name).unwrap_err(), TokenRefusal::NoProject { claim: None }, "{name}");
    }
    assert_eq!(directory.key_end(&by_name.key), None);
    directory.set_account_active(&ci.id, false, "test", START).unwrap();
    assert_eq!(find("spiffe://acme/ci").unwrap_err(), TokenRefusal::InactiveAccount);
    assert_eq!(directory.key_end(&by_name.key), Some(KeyEnd::Inactive), "calls in flight end");
    assert!(!directory.is_current(&by_name, START), "no hold is taken any more");
    directory.set_account_active(&ci.id, true, "test", START).unwrap();
    assert!(find("dns:ci.example.com").is_ok());
    directory.remove_account(&ci.id, "test", START).unwrap();
    assert_eq!(find("dns:ci.example.com").unwrap_err(), TokenRefusal::NoProject { claim: None });
    assert_eq!(directory.key_end(&by_name.key), Some(KeyEnd::Inactive));
}
