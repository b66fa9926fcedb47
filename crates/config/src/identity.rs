//! Settings of identity providers: `[[identity.issuers]]`, and the rules from claims to access. Each key of a table is
//! checked separately, so that one fault does not hide another. Must not know which projects exist.

use std::path::PathBuf;
use std::time::Duration;

use headrace_domain::{ModelName, OrgId, ProjectId};
use headrace_identity::{AccountKind, ModelAccess, RateLimits};
use headrace_jwt::{
    AccessRule, CertificateHolder, CertificateRule, ClaimCondition, GrantValue, IssuerConfig, UnknownUsers,
};

use super::SettingsReader;
use super::ca::read_authorities;
use super::kinds::{LONG_RATE, RATE};
use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

/// Bounds of `max_key_age`.
const KEY_AGE: SettingKind =
    SettingKind::Duration { least: Duration::from_secs(60), most: Duration::from_secs(30 * 24 * 3600) };
/// The default of `max_key_age`.
const USUAL_KEY_AGE: Duration = Duration::from_secs(24 * 3600);
/// The claim that holds the audience (RFC 7519, 4.1.3).
const AUDIENCE_CLAIM: &str = "aud";

impl SettingsReader {
    /// Reads the identity providers.
    pub(super) fn issuers(&mut self) -> Vec<IssuerConfig> {
        let usual_limits = self.limits().key;
        let mut issuers: Vec<IssuerConfig> = Vec::new();
        for mut table in self.list("identity.issuers") {
            if let Some(issuer) = issuer(&mut table, usual_limits) {
                for fault in issuer.faults() {
                    table.problem(fault.field, fault.why);
                }
                if issuers.iter().any(|other| other.issuer == issuer.issuer) {
                    table.problem("issuer", format!("`{}` is named twice", issuer.issuer));
                }
                issuers.push(issuer);
            }
            self.settings.problems.extend(table.end());
        }
        issuers
    }
}

impl SettingsReader {
    /// Reads the rules of client certificates.
    pub(super) fn certificates(&mut self) -> Vec<CertificateRule> {
        let usual_limits = self.limits().key;
        let mut rules: Vec<CertificateRule> = Vec::new();
        for mut table in self.list("identity.certificates") {
            if let Some(rule) = certificate(&mut table, usual_limits) {
                let is_taken = |name: &&String| rules.iter().any(|other| other.names.contains(*name));
                if let Some(name) = rule.names.iter().find(is_taken) {
                    table.problem("names", format!("`{name}` is named twice"));
                }
                rules.push(rule);
            }
            self.settings.problems.extend(table.end());
        }
        if !rules.is_empty() && self.path("server.client_ca").is_none() {
            let why = "needs `server.client_ca`: without it, no client shows a certificate";
            self.fault("identity.certificates", why);
        }
        rules
    }
}

/// Reads an `[[identity.certificates]]` table. Returns `None` if it names no project.
fn certificate(table: &mut TableReader, usual_limits: RateLimits) -> Option<CertificateRule> {
    let names = texts(table, "names").unwrap_or_default();
    if names.is_empty() {
        let why = "is missing: list URI names, or DNS names such as \"dns:agent.example.com\"";
        table.problem("names", why.to_owned());
    }
    if let Some(name) = names.iter().find(|name| !name.contains(':')) {
        table.problem("names", format!("`{name}` is no URI; write a DNS name as \"dns:{name}\""));
    }
    let holder = holder(table);
    let org = table.take_text("org", SettingKind::Text);
    let org =
        org.and_then(|org| OrgId::new(&org).map_err(|error| table.problem("org", error.to_string())).ok());
    let models =
        parsed_texts(table, "models", |text| ModelName::new(text).map_err(|error| error.to_string()));
    let limits = rate_limits(table, usual_limits);
    let models = models.map_or(ModelAccess::All, |names| ModelAccess::Only(names.into_iter().collect()));
    if let Some(CertificateHolder::ServiceAccount(account)) = &holder
        && org.is_none()
        && !account.starts_with(AccountKind::ServiceAccount.prefix())
    {
        let why =
            "is missing: a service account has a name within its organisation; or name its id (`svc_…`)";
        table.problem("org", why.to_owned());
    }
    Some(CertificateRule { names, org, holder: holder?, models, limits })
}

/// Reads the project or the service account of a certificate. One of them must be there.
fn holder(table: &mut TableReader) -> Option<CertificateHolder> {
    let project = table.take_text("project", SettingKind::Text);
    match (project, table.take_text("service_account", SettingKind::Text)) {
        (Some(project), None) => {
            let project =
                ProjectId::new(&project).map_err(|error| table.problem("project", error.to_string()));
            project.ok().map(CertificateHolder::Project)
        }
        (None, Some(account)) => Some(CertificateHolder::ServiceAccount(account)),
        (Some(_), Some(_)) => {
            table.problem(
                "service_account",
                "cannot be beside `project`: a service account has one".to_owned(),
            );
            None
        }
        (None, None) => {
            table.problem(
                "project",
                "is missing: name the project, or a service account (`service_account`)".to_owned(),
            );
            None
        }
    }
}

/// Reads the limits of a user. Where the table sets none, those of new keys apply.
fn rate_limits(table: &mut TableReader, usual: RateLimits) -> RateLimits {
    let mut count = |key, kind| match table.take(key, kind) {
        Some(ParsedValue::Count(count)) => Some(count),
        _ => None,
    };
    let narrow = |count: u64| u32::try_from(count).ok();
    RateLimits {
        requests_per_minute: count("requests_per_minute", RATE)
            .and_then(narrow)
            .or(usual.requests_per_minute),
        tokens_per_minute: count("tokens_per_minute", LONG_RATE).or(usual.tokens_per_minute),
        concurrency: count("concurrency", RATE).and_then(narrow).or(usual.concurrency),
    }
}

/// Reads an `[[identity.issuers]]` table. Returns `None` if it has no issuer.
fn issuer(table: &mut TableReader, usual_limits: RateLimits) -> Option<IssuerConfig> {
    let issuer = table.need("issuer");
    let audiences = texts(table, "audiences");
    let claims = texts(table, "audience_claims");
    let jwks_url = table.take_text("jwks_url", SettingKind::Text);
    let max_key_age = match table.take("max_key_age", KEY_AGE) {
        Some(ParsedValue::Duration(age)) => age,
        _ => USUAL_KEY_AGE,
    };
    let unknown_users = table.take_text("unknown_users", SettingKind::Text);
    let unknown_users = match unknown_users.as_deref() {
        None | Some("create") => UnknownUsers::Create,
        Some("accept") => UnknownUsers::Accept,
        Some("refuse") => UnknownUsers::Refuse,
        Some(other) => {
            table.problem("unknown_users", format!("`{other}` must be \"create\", \"accept\" or \"refuse\""));
            UnknownUsers::Refuse
        }
    };
    let ca_file = table.take_text("ca_file", SettingKind::Text).map(PathBuf::from);
    let extra_roots_pem = ca_file.map(|path| read_authorities(&path)).transpose().unwrap_or_else(|why| {
        table.problem("ca_file", why);
        None
    });
    let rules = rules(table, "{ project = \"p\" }", |inner| rule(inner, usual_limits));
    Some(IssuerConfig {
        issuer: issuer?,
        jwks_url,
        audiences: audiences.unwrap_or_default(),
        audience_claims: claims.unwrap_or_else(|| vec![AUDIENCE_CLAIM.to_owned()]),
        max_key_age,
        unknown_users,
        extra_roots_pem,
        rules,
    })
}

/// Reads `rules`: a list of tables. Faults show `example`.
pub(crate) fn rules<T>(
    table: &mut TableReader,
    example: &str,
    read: impl Fn(&mut TableReader) -> Option<T>,
) -> Vec<T> {
    let items = match table.raw("rules") {
        None => Vec::new(),
        Some(toml::Value::Array(items)) => items,
        Some(other) => {
            table.problem("rules", format!("{other} is no list of tables"));
            Vec::new()
        }
    };
    let mut rules = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        let toml::Value::Table(left) = item else {
            table.problem("rules", format!("{item} is no table: {example}"));
            continue;
        };
        let mut inner = TableReader::within(table, &format!("rules[{at}]"), left);
        rules.extend(read(&mut inner));
        table.problems.extend(inner.end());
    }
    rules
}

/// Reads a table of `rules`. Returns `None` if it names no project.
fn rule(table: &mut TableReader, usual_limits: RateLimits) -> Option<AccessRule> {
    let when = conditions(table);
    let org = value(table, "org", "org_claim", |text| OrgId::new(text).map_err(|error| error.to_string()));
    let project = value(table, "project", "project_claim", |text| {
        ProjectId::new(text).map_err(|error| error.to_string())
    });
    if project.is_none() && table.problems.is_empty() {
        table.problem(
            "project",
            "is missing: name the project, or the claim that holds it (`project_claim`)".to_owned(),
        );
    }
    let projects =
        parsed_texts(table, "projects", |text| ProjectId::new(text).map_err(|error| error.to_string()));
    if projects.is_some() && matches!(project, Some(GrantValue::Fixed(_))) {
        table.problem("projects", "is only for `project_claim`".to_owned());
    }
    let models =
        parsed_texts(table, "models", |text| ModelName::new(text).map_err(|error| error.to_string()));
    let models_claim = table.take_text("models_claim", SettingKind::Text);
    let role = value(table, "role", "role_claim", |text| Ok(text.to_owned()));
    let limits = rate_limits(table, usual_limits);
    Some(AccessRule {
        when,
        org,
        project: project?,
        projects: projects.unwrap_or_default(),
        models: models.map_or(ModelAccess::All, |names| ModelAccess::Only(names.into_iter().collect())),
        models_claim,
        role,
        limits,
    })
}

/// Reads `when`: a table from claims to one value or a list of values.
pub(crate) fn conditions(table: &mut TableReader) -> Vec<ClaimCondition> {
    let claims = match table.raw("when") {
        None => return Vec::new(),
        Some(toml::Value::Table(claims)) => claims,
        Some(other) => {
            table.problem("when", format!("{other} is no table, such as {{ groups = \"research\" }}"));
            return Vec::new();
        }
    };
    let mut conditions = Vec::new();
    for (claim, wanted) in claims {
        let items = match wanted {
            toml::Value::Array(items) => items,
            item => vec![item],
        };
        let text = |item: &toml::Value| match item {
            toml::Value::String(text) => Some(text.clone()),
            toml::Value::Integer(number) => Some(number.to_string()),
            toml::Value::Boolean(flag) => Some(flag.to_string()),
            _ => None,
        };
        let any_of: Option<Vec<String>> = items.iter().map(text).collect();
        match any_of.filter(|values| !values.is_empty()) {
            Some(any_of) => conditions.push(ClaimCondition { claim, any_of }),
            None => table.problem("when", format!("`{claim}` must be a value or a list of values")),
        }
    }
    conditions
}

/// Reads a value that is fixed or taken from a claim. Both at once are a fault.
fn value<T>(
    table: &mut TableReader,
    fixed: &'static str,
    claim: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<GrantValue<T>> {
    let text = table.take_text(fixed, SettingKind::Text);
    let named = table.take_text(claim, SettingKind::Text);
    match (text, named) {
        (Some(_), Some(_)) => {
            table.problem(claim, format!("cannot be beside `{fixed}`: choose one"));
            None
        }
        (Some(text), None) => {
            parse(&text).map(GrantValue::Fixed).map_err(|why| table.problem(fixed, why)).ok()
        }
        (None, Some(claim)) => Some(GrantValue::Claim(claim)),
        (None, None) => None,
    }
}

pub(crate) fn parsed_texts<T>(
    table: &mut TableReader,
    key: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<Vec<T>> {
    let mut values = Vec::new();
    for text in texts(table, key)? {
        match parse(&text) {
            Ok(value) => values.push(value),
            Err(why) => table.problem(key, format!("`{text}`: {why}")),
        }
    }
    Some(values)
}

/// Reads a text or a list of texts. `None` if the key is absent.
pub(crate) fn texts(table: &mut TableReader, key: &'static str) -> Option<Vec<String>> {
    let items = match table.raw(key)? {
        toml::Value::Array(items) => items,
        item => vec![item],
    };
    let mut found = Vec::new();
    for item in items {
        match item {
            toml::Value::String(text) if !text.is_empty() => found.push(text),
            other => table.problem(key, format!("{other} is no text")),
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::layers::SettingLayers;
    use crate::{ServerSettings, fields};

    fn read(text: &str) -> (Vec<IssuerConfig>, Vec<String>) {
        let mut layers = SettingLayers::defaults();
        layers.file(Path::new("h.toml"), text);
        let (settings, layers) = ServerSettings::read(layers, true);
        let faults = layers.problems.iter().map(ToString::to_string).collect();
        (settings.issuers, faults)
    }

    #[test]
    fn an_issuer_with_rules_is_read_whole() {
        let (issuers, faults) = read(
            r#"
            [limits.key]
            requests_per_minute = 60
            [[identity.issuers]]
            issuer = "https://login.example.com/realms/acme"
            audiences = ["headrace", "api"]
            audience_claims = ["aud", "client_id"]
            max_key_age = "2h"
            unknown_users = "refuse"
            [[identity.issuers.rules]]
            when = { groups = ["research", "staff"], email_verified = true }
            project = "lab"
            models = ["small"]
            models_claim = "models"
            role = "scientist"
            concurrency = 4
            [[identity.issuers.rules]]
            org = "acme"
            project_claim = "team.project"
            projects = ["a", "b"]
            "#,
        );
        assert_eq!(faults, Vec::<String>::new());
        let [issuer] = issuers.as_slice() else { panic!("one issuer") };
        assert_eq!(issuer.audience_claims, ["aud", "client_id"]);
        assert_eq!((issuer.jwks_url.as_ref(), issuer.max_key_age), (None, Duration::from_secs(7200)));
        assert_eq!(issuer.unknown_users, UnknownUsers::Refuse);
        let [first, second] = issuer.rules.as_slice() else { panic!("two rules") };
        let condition = |claim: &str, any_of: &[&str]| ClaimCondition {
            claim: claim.to_owned(),
            any_of: any_of.iter().map(|value| (*value).to_owned()).collect(),
        };
        assert_eq!(
            first.when,
            [condition("email_verified", &["true"]), condition("groups", &["research", "staff"])]
        );
        assert_eq!(first.project, GrantValue::Fixed(ProjectId::new("lab").unwrap()));
        assert_eq!(first.models, ModelAccess::Only([ModelName::new("small").unwrap()].into()));
        let limits =
            RateLimits { requests_per_minute: Some(60), tokens_per_minute: None, concurrency: Some(4) };
        assert_eq!(first.limits, limits, "the limits of new keys apply where the rule sets none");
        assert_eq!(second.project, GrantValue::Claim("team.project".to_owned()));
        assert_eq!(second.org, Some(GrantValue::Fixed(OrgId::new("acme").unwrap())));
        assert_eq!(second.projects.len(), 2);
    }

    #[test]
    fn every_fault_is_reported_with_its_place() {
        let (_, faults) = read(
            r#"
            [[identity.issuers]]
            issuer = "http://login.example.com"
            audience = "x"
            rules = [{ project = "a b" }, { when = { groups = [] }, project = "p" }, { project_claim = "p" }, {}]
            [[identity.issuers]]
            issuer = "https://a.example.com"
            audiences = "x"
            rules = [{ project = "p", project_claim = "q" }, { project = "p", projects = ["p"] }]
            [[identity.issuers]]
            issuer = "https://a.example.com"
            audiences = "x"
            jwks_url = "https://user:secret@a.example.com/keys"
            unknown_users = "maybe"
            [[identity.certificates]]
            names = "dns:a.example.com"
            [[identity.certificates]]
            names = "dns:b.example.com"
            project = "p"
            service_account = "ci"
            [[identity.certificates]]
            names = "dns:c.example.com"
            service_account = "ci"
            "#,
        );
        let all = faults.join("\n");
        for expected in [
            "identity.issuers[0].issuer: must begin with https://",
            "identity.issuers[0].audiences: is empty",
            "identity.issuers[0].audience: there is no such setting; did you mean `audiences`?",
            "identity.issuers[0].rules[0].project: not a valid project id",
            "identity.issuers[0].rules[1].when: `groups` must be a value or a list of values",
            "identity.issuers[0].rules: has a rule with `project_claim` alone",
            "identity.issuers[0].rules[3].project: is missing",
            "identity.issuers[1].rules[0].project_claim: cannot be beside `project`",
            "identity.issuers[1].rules[1].projects: is only for `project_claim`",
            "identity.issuers[2].issuer: `https://a.example.com` is named twice",
            "identity.issuers[2].jwks_url: must not have a user or a password",
            "identity.issuers[2].rules: is empty",
            "identity.issuers[2].unknown_users: `maybe` must be",
            "identity.certificates[0].project: is missing",
            "identity.certificates[1].service_account: cannot be beside `project`",
            "identity.certificates[2].org: is missing",
        ] {
            assert!(all.contains(expected), "{expected}\n---\n{all}");
        }
    }

    #[test]
    fn without_issuers_none_are_read() {
        assert_eq!(read("").0, []);
        assert!(fields::find("identity.issuers").is_some());
    }
}
