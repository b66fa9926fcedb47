//! Settings of the identity providers at which operators sign in: `[[admin.sign_in]]`. Must not know how a sign-in
//! works.

use std::path::PathBuf;
use std::time::Duration;

use headrace_domain::OrgId;
use headrace_identity::Role;
use headrace_jwt::{OperatorRule, SignInConfig};

use super::SettingsReader;
use super::access_fields::SIGN_IN;
use super::ca::read_authorities;
use super::identity::{conditions, parsed_texts, rules, texts};
use super::key_text::read_key;
use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

/// Bounds of `session`, and its default.
const SESSION: SettingKind =
    SettingKind::Duration { least: Duration::from_secs(60), most: Duration::from_secs(12 * 3600) };
const USUAL_SESSION: Duration = Duration::from_secs(8 * 3600);
/// The default of `scopes`.
const USUAL_SCOPES: [&str; 2] = ["profile", "email"];

impl SettingsReader {
    /// Reads the identity providers of operators.
    pub(super) fn sign_in(&mut self) -> Vec<SignInConfig> {
        let mut providers: Vec<SignInConfig> = Vec::new();
        for mut table in self.list(SIGN_IN) {
            if let Some(provider) = provider(&mut table) {
                // A rule with a fault is missing from the list, which is no fault of its own.
                let has_bad_rule = table.problems.iter().any(|problem| problem.what.contains(".rules"));
                for fault in provider.faults() {
                    if fault.field != "rules" || !has_bad_rule {
                        table.problem(fault.field, fault.why);
                    }
                }
                if providers.iter().any(|other| other.name == provider.name) {
                    table.problem("name", format!("`{}` is named twice", provider.name));
                }
                providers.push(provider);
            }
            self.settings.problems.extend(table.end());
        }
        providers
    }
}

/// Reads an `[[admin.sign_in]]` table. Returns `None` if a key without a default is missing.
fn provider(table: &mut TableReader) -> Option<SignInConfig> {
    let (name, issuer, client_id) = (table.need("name"), table.need("issuer"), table.need("client_id"));
    let label = table.take_text("label", SettingKind::Text);
    let client_secret = match table.take("client_secret_file", SettingKind::Path) {
        Some(ParsedValue::Path(path)) => {
            read_key(&path).map_err(|why| table.problem("client_secret_file", why)).ok()
        }
        _ => None,
    };
    let scopes = texts(table, "scopes");
    let session = match table.take("session", SESSION) {
        Some(ParsedValue::Duration(session)) => session,
        _ => USUAL_SESSION,
    };
    let ca_file = table.take_text("ca_file", SettingKind::Text).map(PathBuf::from);
    let extra_roots_pem = ca_file.map(|path| read_authorities(&path)).transpose().unwrap_or_else(|why| {
        table.problem("ca_file", why);
        None
    });
    let users_of =
        parsed_texts(table, "users_of", |text| OrgId::new(text).map_err(|error| error.to_string()));
    let rules = rules(table, "{ when = { groups = \"platform\" }, role = \"admin\" }", rule);
    let name = name?;
    Some(SignInConfig {
        label: label.unwrap_or_else(|| name.clone()),
        name,
        issuer: issuer?,
        client_id: client_id?,
        client_secret,
        scopes: scopes.unwrap_or_else(|| USUAL_SCOPES.map(str::to_owned).to_vec()),
        session,
        extra_roots_pem,
        rules,
        users_of,
    })
}

/// Reads a table of `rules`. Returns `None` if it has no role.
fn rule(table: &mut TableReader) -> Option<OperatorRule> {
    let when = conditions(table);
    let role = table.need("role")?;
    let known = Role::named(&role);
    if known.is_none() {
        let names = Role::ALL.map(Role::name).join(", ");
        table.problem("role", format!("\"{role}\" is none of {names}"));
    }
    Some(OperatorRule { when, role: known? })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ServerSettings;
    use crate::layers::SettingLayers;

    fn read(text: &str) -> (Vec<SignInConfig>, Vec<String>) {
        let mut layers = SettingLayers::defaults();
        layers.file(Path::new("h.toml"), text);
        let (settings, layers) = ServerSettings::read(layers, true);
        let faults = layers.problems.iter().map(ToString::to_string).collect();
        (settings.admin.sign_in, faults)
    }

    #[test]
    fn a_provider_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "shh\n").unwrap();
        let (providers, faults) = read(&format!(
            r#"
            [[admin.sign_in]]
            name = "acme"
            label = "Acme"
            issuer = "https://login.example.com"
            client_id = "headrace"
            client_secret_file = "{}"
            session = "1h"
            scopes = ["groups"]
            users_of = ["acme", "staff"]
            [[admin.sign_in.rules]]
            when = {{ groups = ["platform", "sre"], email_verified = true }}
            role = "admin"
            [[admin.sign_in]]
            name = "plain"
            issuer = "https://b.example.com"
            client_id = "x"
            rules = [{{ when = {{ groups = "all" }}, role = "viewer" }}]
            "#,
            secret.display()
        ));
        assert_eq!(faults, Vec::<String>::new());
        let [acme, plain] = providers.as_slice() else { panic!("two providers") };
        use secrecy::ExposeSecret as _;
        assert_eq!(acme.client_secret.as_ref().unwrap().expose_secret(), "shh");
        assert_eq!((acme.label.as_str(), acme.session), ("Acme", Duration::from_secs(3600)));
        assert_eq!((acme.scopes.len(), acme.rules[0].when.len(), acme.rules[0].role), (1, 2, Role::Admin));
        assert_eq!(acme.users_of, Some(["acme", "staff"].map(|org| OrgId::new(org).unwrap()).to_vec()));
        assert_eq!(plain.users_of, None);
        assert_eq!((plain.label.as_str(), plain.session), ("plain", USUAL_SESSION));
        assert_eq!(plain.scopes, USUAL_SCOPES);
    }

    #[test]
    fn every_fault_of_a_provider_is_reported_with_its_place() {
        let (_, faults) = read(
            r#"
            [admin]
            listen = "0.0.0.0:8081"
            [[admin.sign_in]]
            name = "A B"
            issuer = "http://login.example.com"
            client_id = ""
            rules = []
            [[admin.sign_in]]
            name = "a"
            issuer = "https://a.example.com"
            client_id = "x"
            rules = [{ role = "viewer" }]
            users_of = ["a b"]
            [[admin.sign_in]]
            name = "a"
            issuer = "https://a.example.com"
            client_id = "x"
            client_secret_file = "/does/not/exist"
            rules = [{ when = { g = "x" }, role = "boss" }]
            [[admin.sign_in]]
            name = "b"
            "#,
        );
        let all = faults.join("\n");
        for expected in [
            "admin.url: is missing",
            "admin.sign_in[0].name: must have 1 to 24 lower-case letters",
            "admin.sign_in[0].issuer: must begin with https://",
            "admin.sign_in[0].client_id: is empty",
            "admin.sign_in[0].rules: is empty",
            "admin.sign_in[1].rules: has a rule without `when`",
            "admin.sign_in[1].users_of: ",
            "admin.sign_in[2].name: `a` is named twice",
            "admin.sign_in[2].client_secret_file: cannot read a key",
            "admin.sign_in[2].rules[0].role: \"boss\" is none of owner, admin",
            "admin.sign_in[3].issuer: is missing",
            "admin.sign_in[3].client_id: is missing",
        ] {
            assert!(all.contains(expected), "{expected}\n---\n{all}");
        }
    }
}
