//! Settings of endpoints that receive events: `[[webhooks]]`. Secrets come from files and variables, never from settings.
//! Must not know how events are sent.

use headrace_jwt::WebhookSecret;
use headrace_upstream::{AllowedHost, UrlPolicy};
use secrecy::SecretString;

use super::SettingsReader;
use super::billing_fields::WEBHOOKS;
use super::key_text::{read_key, trimmed};
use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};
use super::variables::{SECRET_SUFFIX, WEBHOOK_PREFIX};

/// The kinds of events.
pub const EVENT_KINDS: &[&str] = &["budget.alert"];
/// Maximum number of endpoints.
const MAX_ENDPOINTS: usize = 32;

/// An endpoint that receives events.
#[derive(Debug, Clone)]
pub struct WebhookEndpoint {
    /// Its name, for operators.
    pub name: String,
    /// The URL that events are posted to.
    pub url: String,
    /// The secret that signs them.
    pub secret: WebhookSecret,
    /// The kinds of events that it receives.
    pub events: Vec<&'static str>,
    /// Where it may be.
    pub addresses: UrlPolicy,
}

impl SettingsReader {
    /// Reads the endpoints.
    pub(super) fn webhooks(&mut self) -> Vec<WebhookEndpoint> {
        let mut endpoints: Vec<WebhookEndpoint> = Vec::new();
        for mut table in self.list(WEBHOOKS) {
            if let Some(endpoint) = endpoint(&mut table) {
                if endpoints.iter().any(|other| other.name == endpoint.name) {
                    table.problem("name", format!("`{}` is named twice", endpoint.name));
                }
                if endpoints.len() == MAX_ENDPOINTS {
                    table.problem("", format!("there are more than {MAX_ENDPOINTS} endpoints"));
                }
                endpoints.push(endpoint);
            }
            self.settings.problems.extend(table.end());
        }
        endpoints
    }
}

/// Reads a `[[webhooks]]` table. Returns `None` if a required key is missing or has a fault.
fn endpoint(table: &mut TableReader) -> Option<WebhookEndpoint> {
    let (name, url) = (table.need("name"), table.need("url"));
    let name = name.filter(|name| {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let good = !name.is_empty() && name.len() <= 24 && name.bytes().all(fits);
        if !good {
            table.problem("name", "must have 1 to 24 lower-case letters, digits or hyphens".to_owned());
        }
        good
    });
    let secret = name.as_ref().and_then(|name| secret(table, name));
    let events = events(table);
    let addresses = addresses(table);
    let (url, addresses) = (url?, addresses?);
    if !addresses.may_allow(&url) {
        let why = match addresses {
            UrlPolicy::Hosts(_) => "is none of `hosts`",
            _ => "must be https to a host on the public internet; `hosts` lists others",
        };
        table.problem("url", why.to_owned());
        return None;
    }
    Some(WebhookEndpoint { name: name?, url, secret: secret?, events: events?, addresses })
}

/// The variable that may hold the secret of an endpoint.
fn variable(name: &str) -> String {
    format!("{WEBHOOK_PREFIX}{}{SECRET_SUFFIX}", name.to_ascii_uppercase().replace('-', "_"))
}

fn secret(table: &mut TableReader, name: &str) -> Option<WebhookSecret> {
    let variable = variable(name);
    let text: Option<SecretString> = match table.take("secret_file", SettingKind::Path) {
        Some(ParsedValue::Path(path)) => {
            Some(read_key(&path).map_err(|why| table.problem("secret_file", why)).ok()?)
        }
        _ => std::env::var(&variable).ok().filter(|text| !text.is_empty()).map(trimmed),
    };
    let Some(text) = text else {
        table.problem("secret_file", format!("is missing, and the variable {variable} is not set"));
        return None;
    };
    WebhookSecret::parse(&text).map_err(|why| table.problem("secret_file", why.to_owned())).ok()
}

fn events(table: &mut TableReader) -> Option<Vec<&'static str>> {
    let Some(value) = table.raw("events") else { return Some(EVENT_KINDS.to_vec()) };
    let known = |kind: &toml::Value| EVENT_KINDS.iter().copied().find(|known| kind.as_str() == Some(known));
    let kinds = value.as_array().and_then(|kinds| kinds.iter().map(known).collect::<Option<Vec<_>>>());
    if kinds.as_ref().is_none_or(Vec::is_empty) {
        table.problem("events", format!("must be a list of {}", EVENT_KINDS.join(", ")));
        return None;
    }
    kinds
}

/// Reads where the endpoint may be: on the public internet, or at listed hosts.
fn addresses(table: &mut TableReader) -> Option<UrlPolicy> {
    const SHAPE: &str = "must be a list of hosts such as [\"hooks.internal\", \"http://10.0.0.7:8080\"]";
    let Some(value) = table.raw("hosts") else { return Some(UrlPolicy::Public) };
    let host = |host: &toml::Value| match host.as_str() {
        Some(text) => AllowedHost::parse(text),
        None => Err(SHAPE.to_owned()),
    };
    let hosts = value.as_array().ok_or_else(|| SHAPE.to_owned());
    let hosts = hosts.and_then(|hosts| hosts.iter().map(host).collect::<Result<Vec<_>, _>>());
    hosts.map(UrlPolicy::Hosts).map_err(|why| table.problem("hosts", why)).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ServerSettings;
    use crate::layers::SettingLayers;

    fn read(text: &str) -> (Vec<WebhookEndpoint>, Vec<String>) {
        let mut layers = SettingLayers::defaults();
        layers.file(Path::new("h.toml"), text);
        let (settings, layers) = ServerSettings::read(layers, true);
        (settings.webhooks, layers.problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_endpoint_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let secret = secret.display();
        let (endpoints, faults) = read(&format!(
            "[[webhooks]]\nname = \"ops\"\nurl = \"https://hooks.example.com/x\"\nsecret_file = \"{secret}\"\n\
             [[webhooks]]\nname = \"mail\"\nurl = \"http://127.0.0.1:9000/\"\nsecret_file = \"{secret}\"\n\
             events = [\"budget.alert\"]\nhosts = [\"http://127.0.0.1:9000\"]\n"
        ));
        assert_eq!(faults, Vec::<String>::new());
        let [ops, mail] = endpoints.as_slice() else { panic!("{endpoints:?}") };
        assert_eq!((ops.name.as_str(), &ops.addresses, ops.events.len()), ("ops", &UrlPolicy::Public, 1));
        assert_eq!(
            (mail.url.as_str(), mail.events.as_slice()),
            ("http://127.0.0.1:9000/", &["budget.alert"][..])
        );
    }

    #[test]
    fn every_fault_of_an_endpoint_is_reported_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (good, bad) = (dir.path().join("good"), dir.path().join("bad"));
        std::fs::write(&good, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        std::fs::write(&bad, "secret\n").unwrap();
        let (good, bad) = (good.display(), bad.display());
        let (_, faults) = read(&format!(
            "[[webhooks]]\nname = \"A B\"\nurl = \"https://a.example.com\"\nsecret_file = \"{good}\"\n\
             [[webhooks]]\nname = \"b\"\nurl = \"http://b.example.com\"\nsecret_file = \"{bad}\"\n\
             [[webhooks]]\nname = \"c\"\nurl = \"https://10.0.0.1/\"\n\
             [[webhooks]]\nname = \"d\"\nurl = \"https://d.example.com\"\nsecret_file = \"{good}\"\nevents = [\"x\"]\nhosts = 1\n\
             [[webhooks]]\nname = \"e\"\nurl = \"https://e.example.com\"\nsecret_file = \"{good}\"\nhosts = [\"f.example.com\"]\ncolour = 1\n"
        ));
        let all = faults.join("\n");
        for expected in [
            "webhooks[0].name: must have 1 to 24",
            "webhooks[1].secret_file: it does not begin with `whsec_`",
            "webhooks[1].url: must be https to a host on the public internet",
            "webhooks[2].secret_file: is missing, and the variable HEADRACE_WEBHOOK_C_SECRET is not set",
            "webhooks[2].url: must be https",
            "webhooks[3].events: must be a list of budget.alert",
            "webhooks[3].hosts: must be a list of hosts",
            "webhooks[4].url: is none of `hosts`",
            "colour",
        ] {
            assert!(all.contains(expected), "{expected}\n---\n{all}");
        }
    }
}
