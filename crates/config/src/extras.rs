//! What calls may ask of an upstream besides tokens: URLs that its server fetches, and extras without a price. Must not
//! know what a call asks for.

use headrace_relay::ALLOWABLE;
use headrace_upstream::{AllowedHost, UrlPolicy};

use super::table::TableReader;

/// Reads which URLs in calls the upstream may receive: `urls`.
pub(super) fn urls(table: &mut TableReader) -> Option<UrlPolicy> {
    const SHAPE: &str = "must be \"off\", \"public\", or a list of hosts such as [\"cdn.example.com\"]";
    let hosts = match table.raw("urls")? {
        toml::Value::String(word) if word == "off" => return Some(UrlPolicy::Off),
        toml::Value::String(word) if word == "public" => return Some(UrlPolicy::Public),
        toml::Value::Array(hosts) => hosts,
        _ => {
            table.problem("urls", SHAPE.to_owned());
            return None;
        }
    };
    let host = |host: &toml::Value| match host.as_str() {
        Some(text) => AllowedHost::parse(text),
        None => Err(SHAPE.to_owned()),
    };
    match hosts.iter().map(host).collect() {
        Ok(hosts) => Some(UrlPolicy::Hosts(hosts)),
        Err(why) => {
            table.problem("urls", why);
            None
        }
    }
}

/// Reads which extras calls may request without a price: `allow_unpriced`.
pub(super) fn allow_unpriced(table: &mut TableReader) -> Vec<&'static str> {
    let Some(value) = table.raw("allow_unpriced") else { return Vec::new() };
    let known = |name: &toml::Value| ALLOWABLE.iter().copied().find(|known| name.as_str() == Some(known));
    let names = value.as_array().and_then(|names| names.iter().map(known).collect::<Option<Vec<_>>>());
    names.unwrap_or_else(|| {
        table.problem("allow_unpriced", format!("must be a list of {}", ALLOWABLE.join(", ")));
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_a_server_may_be_handed_is_read_or_refused() {
        let read = |kind: &str, url: &str, more: &str| {
            let text = format!("[[upstreams]]\nname = \"a\"\nkind = \"{kind}\"\nurl = \"{url}\"\n{more}");
            let mut settings = super::super::layers::SettingLayers::defaults();
            settings.file(Path::new("h.toml"), &text);
            let config = super::super::ServerSettings::from_settings(settings, false);
            config.map(|config| config.upstreams[0].spec.clone()).map_err(|error| error.to_string())
        };
        let urls = |kind: &str, url: &str, more: &str| read(kind, url, more).unwrap().url_policy();
        for (kind, url, policy) in [
            ("openai", "https://api.openai.com", UrlPolicy::Public),
            ("anthropic", "https://api.anthropic.com", UrlPolicy::Public),
            ("openai", "http://127.0.0.1:8000", UrlPolicy::Off),
            ("openai", "http://10.0.0.7:8000", UrlPolicy::Off),
            ("anthropic", "http://gpu:8000", UrlPolicy::Off),
            ("openai", "http://llm.internal", UrlPolicy::Off),
            ("headrace", "http://[::1]:8000", UrlPolicy::Off),
            ("vllm", "https://vllm.example.com", UrlPolicy::Off),
            ("sglang", "https://sglang.example.com", UrlPolicy::Off),
            ("llamacpp", "https://llama.example.com", UrlPolicy::Off),
        ] {
            assert_eq!(urls(kind, url, ""), policy, "{kind} {url}");
            assert_eq!(urls(kind, url, "urls = \"public\""), UrlPolicy::Public);
            assert_eq!(urls(kind, url, "urls = \"off\""), UrlPolicy::Off);
        }
        let listed = UrlPolicy::Hosts(vec![AllowedHost::parse("*.example.com").unwrap()]);
        assert_eq!(urls("vllm", "http://127.0.0.1:1", "urls = [\"*.example.com\"]"), listed);
        let spec =
            read("openai", "https://api.openai.com", "allow_unpriced = [\"web_fetch\", \"speed\"]").unwrap();
        assert_eq!((spec.allow_unpriced, spec.cache_disclosed), (vec!["web_fetch", "speed"], false));
        assert!(read("openai", "https://a.b", "cache_shared = \"disclose\"").unwrap().cache_disclosed);
        for (more, why) in [
            ("urls = \"all\"", "must be \"off\", \"public\", or a list"),
            ("urls = [\"a.b/c\"]", "is no host"),
            ("allow_unpriced = [\"everything\"]", "must be a list of audio"),
            ("cache_shared = \"maybe\"", "hide, disclose"),
        ] {
            let message = read("openai", "https://a.b", more).unwrap_err();
            assert!(message.contains(why), "{more}: {message}");
        }
    }
}
