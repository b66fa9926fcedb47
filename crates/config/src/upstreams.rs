//! Settings of upstreams: one table per server that calls are sent to, and the targets of models that they serve. Keys
//! come from files and variables, never from settings. Must not know what a server is asked.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use headrace_catalog::{
    ControlTokenPolicy, InputKinds, ModelPolicy, OffForm, OnBreak, PastAnswers, ToolsOrder,
};
use headrace_domain::{Dialect, KeyId, ModelName, Region};
use headrace_engine_api::AbandonPolicy;
use headrace_fleet::HedgePolicy;
use headrace_ledger::prices::PriceConfig;
use headrace_limits::LimitSpec;
use headrace_upstream::{CacheFeed, UpstreamKind, UpstreamSpec, UseHttp2};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::extras::{allow_unpriced, urls};
use super::paths::not_a_model;
use super::prices::prices_of;
use super::relayed::{RelayTarget, RelayedConfig, UpstreamConfig, WordsAt};
use super::table::TableReader;
use super::thinking::thinking;
use super::value::{ParsedValue, SettingKind};
use super::variables::{KEY_PREFIX, KEY_SUFFIX, SECRET_SUFFIX};
use super::{DEMO_PATH, SettingsReader};
use crate::ca::read_authorities;
use crate::key_text::read_key;

/// Bounds on an upstream's timeouts: 1 ms to 24 hours.
const LONGEST: SettingKind =
    SettingKind::Duration { least: Duration::from_millis(1), most: Duration::from_secs(24 * 3600) };
/// Bounds on the interval of load reports: zero, which disables them, to one hour.
const OFTEN: SettingKind = SettingKind::Duration { least: Duration::ZERO, most: Duration::from_secs(3600) };
/// Bounds on numbers of calls in flight or waiting.
const CALLS: SettingKind = SettingKind::Count { least: 1, most: 1 << 20 };
/// Variables in which other programs look for a proxy.
const PROXY_VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const ABANDONED: &[&str] = &["abort", "drain"];
/// The names of [`OnBreak`].
const ON_BREAK: &[&str] = &["error", "continue"];
/// The names of [`PastAnswers`].
const PAST_ANSWERS: &[&str] = &["generated", "text"];
/// The names of [`ToolsOrder`].
const TOOLS_ORDERS: &[&str] = &["sent", "canonical"];
/// The names of [`OffForm`].
const OFF_FORM: &[&str] = &["refuse", "retry", "pass"];
/// How Responses calls are sent.
const RESPONSES: &[&str] = &["translate", "pass"];
/// Whether callers see the cache hits of an upstream whose cache is shared between tenants.
const CACHE_SHARED: &[&str] = &["hide", "disclose"];
const HTTP2: &[&str] = &["auto", "off", "always"];

impl SettingsReader {
    pub(super) fn upstreams(&mut self) -> Vec<UpstreamConfig> {
        let mut upstreams: Vec<UpstreamConfig> = Vec::new();
        for mut table in self.list("upstreams") {
            if let Some(upstream) = upstream(&mut table) {
                if upstreams.iter().any(|other| other.spec.name == upstream.spec.name) {
                    table.problem("name", format!("`{}` is named twice", upstream.spec.name));
                }
                upstreams.push(upstream);
            }
            self.settings.problems.extend(table.end());
        }
        upstreams
    }
}

/// Reads an `[[upstreams]]` table. Returns `None` if no upstream can be built from it.
fn upstream(table: &mut TableReader) -> Option<UpstreamConfig> {
    let mut fingerprint = blake3::Hasher::new();
    fingerprint.update(table.text().as_bytes());
    let name = table.need("name");
    let kind = table.need("kind").and_then(|word| {
        word.parse::<UpstreamKind>().map_err(|error| table.problem("kind", error.to_string())).ok()
    });
    let url = table.need("url");
    if let Some(why) = name.as_deref().and_then(bad_name) {
        table.problem("name", why);
        return None;
    }
    let mut spec = UpstreamSpec::new(name.as_deref()?, kind.unwrap_or(UpstreamKind::OpenAi), url.as_deref()?);
    spec.key = key(table, &spec.name);
    spec.worker_secret = secret(table, "secret_file", &variable(&spec.name, SECRET_SUFFIX));
    spec.headers = headers(table);
    spec.extra_roots_pem = file(table, "ca_file");
    spec.proxy = table.take_text("proxy", SettingKind::Text).map(SecretString::from);
    spec.unused_proxy = PROXY_VARIABLES
        .into_iter()
        .find(|name| std::env::var_os(name).is_some_and(|proxy| !proxy.is_empty()));
    times(table, &mut spec);
    bounds(table, &mut spec);
    if let Some(ParsedValue::Duration(every)) = table.take("load_every", OFTEN) {
        spec.load_every = every;
    }
    spec.cache_feed = feed(table);
    spec.urls = urls(table);
    spec.cache_disclosed =
        table.take_text("cache_shared", SettingKind::Choice(CACHE_SHARED)).as_deref() == Some("disclose");
    spec.allow_unpriced = allow_unpriced(table);
    let abandoned = table.take_text("abandoned", SettingKind::Choice(ABANDONED));
    spec.abandoned =
        if abandoned.as_deref() == Some("drain") { AbandonPolicy::Drain } else { AbandonPolicy::Abort };
    spec.http2.when = match table.take_text("http2", SettingKind::Choice(HTTP2)).as_deref() {
        Some("off") => UseHttp2::Off,
        Some("always") => UseHttp2::Always,
        _ => UseHttp2::Auto,
    };
    let region = region(table);
    let serve = table.take("serve", SettingKind::Flag) == Some(ParsedValue::Flag(true));
    let passes_responses =
        table.take_text("responses", SettingKind::Choice(RESPONSES)).as_deref() == Some("pass");
    if passes_responses && kind.is_some_and(|kind| kind.dialect() != Dialect::OpenAi) {
        table.problem("responses", "`pass` is for kinds that speak OpenAI's dialect themselves".to_owned());
    }
    let price = price(table, &spec.name);
    kind?;
    for why in spec.check() {
        table.problem("", why);
    }
    let keys =
        [&spec.key, &spec.worker_secret].map(|key| key.as_ref().map(|key| key.expose_secret().as_bytes()));
    for secret in keys.into_iter().chain([spec.extra_roots_pem.as_deref()]).map(Option::unwrap_or_default) {
        fingerprint.update(&secret.len().to_le_bytes()).update(secret);
    }
    let fingerprint = *fingerprint.finalize().as_bytes();
    Some(UpstreamConfig {
        setting: table.what.clone(),
        spec,
        region,
        serve,
        passes_responses,
        price,
        fingerprint,
    })
}

fn region(table: &mut TableReader) -> Option<Region> {
    let name = table.take_text("region", SettingKind::Text)?;
    Region::new(&name).map_err(|error| table.problem("region", error.to_string())).ok()
}

/// Returns what is wrong with an upstream's name, if anything. The name is a prefix of model names and part of a
/// variable's name.
fn bad_name(name: &str) -> Option<String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let good = !name.is_empty() && name.len() <= 64 && name.bytes().all(fits);
    (!good).then(|| format!("`{name}` is no name of an upstream: up to 64 letters, digits, `-`, `_` or `.`"))
}

/// The variable that may hold an upstream's key.
pub(crate) fn key_variable(name: &str) -> String {
    variable(name, KEY_SUFFIX)
}

fn variable(name: &str, suffix: &str) -> String {
    let upper = name.to_ascii_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("{KEY_PREFIX}{upper}{suffix}")
}

fn key(table: &mut TableReader, name: &str) -> Option<SecretString> {
    secret(table, "key_file", &key_variable(name))
}

/// Reads a secret from the file that `key` names, or else from a variable.
fn secret(table: &mut TableReader, key: &'static str, variable: &str) -> Option<SecretString> {
    if let Some(ParsedValue::Path(path)) = table.take(key, SettingKind::Path) {
        return read_key(&path).map_err(|why| table.problem(key, why)).ok();
    }
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(SecretString::from(text))
}

fn file(table: &mut TableReader, key: &'static str) -> Option<Vec<u8>> {
    let Some(ParsedValue::Path(path)) = table.take(key, SettingKind::Path) else { return None };
    read_authorities(&path).map_err(|why| table.problem(key, why)).ok()
}

fn headers(table: &mut TableReader) -> Vec<(String, SecretString)> {
    let Some(ParsedValue::Raw(toml::Value::Table(headers))) = table.take("headers", SettingKind::Names)
    else {
        return Vec::new();
    };
    let text = |(name, value): (String, toml::Value)| match value {
        toml::Value::String(value) => Some((name, SecretString::from(value))),
        _ => {
            table.problem("headers", format!("the value of `{name}` must be text"));
            None
        }
    };
    headers.into_iter().filter_map(text).collect()
}

fn times(table: &mut TableReader, spec: &mut UpstreamSpec) {
    let times = &mut spec.timeouts;
    let fields = [
        ("connect_timeout", &mut times.connect),
        ("head_timeout", &mut times.head),
        ("whole_timeout", &mut times.whole),
        ("idle_timeout", &mut times.idle),
    ];
    for (key, time) in fields {
        if let Some(ParsedValue::Duration(found)) = table.take(key, LONGEST) {
            *time = found;
        }
    }
}

/// Reads the addresses at which a server publishes its cache events.
fn feed(table: &mut TableReader) -> Option<CacheFeed> {
    let events = table.take_text("kv_events", SettingKind::Text);
    let replay = table.take_text("kv_replay", SettingKind::Text);
    if events.is_none() && replay.is_some() {
        table.problem("kv_replay", "needs `kv_events` beside it".to_owned());
    }
    Some(CacheFeed { events: events?, replay })
}

fn bounds(table: &mut TableReader, spec: &mut UpstreamSpec) {
    let mut count = |key: &'static str| match table.take(key, CALLS) {
        Some(ParsedValue::Count(count)) => usize::try_from(count).ok(),
        _ => None,
    };
    spec.queue.in_flight = count("max_in_flight");
    spec.queue.waiting = count("queue").unwrap_or(spec.queue.waiting);
    spec.pool.idle_connections = count("idle_connections").unwrap_or(spec.pool.idle_connections);
    if let Some(ParsedValue::Duration(found)) = table.take("queue_wait", LONGEST) {
        spec.queue.wait = found;
    }
}

/// Reads the default price of an upstream's models: the keys of `[[prices]]` except `model`.
fn price(table: &mut TableReader, name: &str) -> Option<PriceConfig> {
    let prices = match table.raw("price")? {
        toml::Value::Table(prices) => prices,
        other => {
            let why = format!("{other} is not a table such as {{ input = \"0.10\", output = \"0.40\" }}");
            table.problem("price", why);
            return None;
        }
    };
    // A placeholder name. The real one replaces it when a model is priced.
    let model = ModelName::new(name).ok()?;
    let mut inner = TableReader::within(table, "price", prices);
    let price = prices_of(&mut inner, model);
    if price
        .as_ref()
        .is_some_and(|price| price.tier.is_some() || price.above.is_some() || price.holder_tier.is_some())
    {
        inner.problem(
            "",
            "takes neither `tier` nor `above` nor `holder_tier`: name the model under [[prices]] for those"
                .to_owned(),
        );
    }
    table.problems.extend(inner.end());
    price
}

/// Reads the `targets` of a `[[models]]` table that has some.
pub(super) fn relayed(table: &mut TableReader, name: Option<ModelName>) -> Option<RelayedConfig> {
    let mut targets = Vec::new();
    match table.raw("targets") {
        Some(toml::Value::Array(items)) if !items.is_empty() => {
            for item in items {
                let text = item.as_str().map_or_else(|| item.to_string(), str::to_owned);
                match RelayTarget::parse(&text) {
                    Ok(target) => targets.push(target),
                    Err(why) => table.problem("targets", why),
                }
            }
        }
        _ => table.problem("targets", "must be a list of \"UPSTREAM/MODEL\", at least one".to_owned()),
    }
    let most = u64::from(u32::MAX);
    let tokens = SettingKind::Count { least: 1, most };
    let mut count = |key: &'static str| match table.take(key, tokens) {
        Some(ParsedValue::Count(count)) => u32::try_from(count).ok(),
        _ => None,
    };
    let (default_max_tokens, context_window) = (count("default_max_tokens"), count("context_window"));
    let words = words(table);
    let inputs = inputs(table);
    let reply = table.take_family();
    let policy = policy(table);
    let limits = table.raw("limits").map(LimitSpec::deserialize).transpose().unwrap_or_else(|error| {
        table.problem("limits", error.to_string().trim_end().replace('\n', " "));
        None
    });
    Some(RelayedConfig {
        setting: table.what.clone(),
        name: name?,
        targets,
        words,
        reply,
        default_max_tokens,
        context_window,
        inputs,
        limits: limits.unwrap_or(LimitSpec::UNLIMITED),
        policy,
    })
}

/// Reads the operator's choices for a model, such as what happens if a target breaks off during an answer.
fn policy(table: &mut TableReader) -> ModelPolicy {
    let named = table.take_text("on_break", SettingKind::Choice(ON_BREAK));
    let on_break = OnBreak::ALL.into_iter().find(|known| Some(known.name()) == named.as_deref());
    ModelPolicy {
        on_break: on_break.unwrap_or_default(),
        hedge: hedge(table),
        tools_order: tools_order(table),
        thinking: thinking(table),
        off_form: off_form(table),
        parse_special: parse_special(table),
        past_answers: past_answers(table),
    }
}

/// Reads which inputs besides text a model takes: `input`.
fn inputs(table: &mut TableReader) -> Option<InputKinds> {
    const SHAPE: &str = "must be a list of text, image, document, audio, video, text among them";
    let value = table.raw("input")?;
    let words: Option<Vec<&str>> =
        value.as_array().and_then(|words| words.iter().map(toml::Value::as_str).collect());
    let kind = |word: &str| InputKinds::ALL.into_iter().find(|kind| kind.name() == word);
    match words {
        Some(words)
            if words.contains(&"text")
                && words.iter().all(|word| *word == "text" || kind(word).is_some()) =>
        {
            Some(InputKinds::of(words.into_iter().filter_map(kind)))
        }
        _ => {
            table.problem("input", SHAPE.to_owned());
            None
        }
    }
}

/// Reads how earlier answers in a prompt are encoded: `past_answers`.
pub(super) fn past_answers(table: &mut TableReader) -> PastAnswers {
    let named = table.take_text("past_answers", SettingKind::Choice(PAST_ANSWERS));
    PastAnswers::ALL.into_iter().find(|known| Some(known.name()) == named.as_deref()).unwrap_or_default()
}

/// Reads which keys may send control tokens as text in raw prompts: `parse_special`.
pub(super) fn parse_special(table: &mut TableReader) -> ControlTokenPolicy {
    const SHAPE: &str = "must be a list of ids of keys, or \"all\"";
    let keys = match table.raw("parse_special") {
        None => return ControlTokenPolicy::Nobody,
        Some(toml::Value::String(word)) if word == "all" => return ControlTokenPolicy::All,
        Some(toml::Value::Array(keys)) => {
            keys.iter().map(|key| KeyId::new(key.as_str()?).ok()).collect::<Option<BTreeSet<_>>>()
        }
        Some(_) => None,
    };
    keys.map_or_else(
        || {
            table.problem("parse_special", SHAPE.to_owned());
            ControlTokenPolicy::Nobody
        },
        |keys| ControlTokenPolicy::Keys(Arc::new(keys)),
    )
}

/// Reads what happens if an answer violates the requested response format: `structured.invalid`.
pub(super) fn off_form(table: &mut TableReader) -> OffForm {
    let named =
        one_of(table, "structured", "invalid", OFF_FORM, "must be a table such as { invalid = \"retry\" }");
    OffForm::ALL.into_iter().find(|known| Some(known.name()) == named.as_deref()).unwrap_or_default()
}

/// Reads in which order tool schemas name properties: `tools.order`.
pub(super) fn tools_order(table: &mut TableReader) -> ToolsOrder {
    let named =
        one_of(table, "tools", "order", TOOLS_ORDERS, "must be a table such as { order = \"canonical\" }");
    ToolsOrder::ALL.into_iter().find(|known| Some(known.name()) == named.as_deref()).unwrap_or_default()
}

/// Reads an inner table whose only key holds one of the `known` words. `shape` is the message for a value that is no
/// table.
fn one_of(
    table: &mut TableReader,
    name: &'static str,
    key: &'static str,
    known: &'static [&'static str],
    shape: &str,
) -> Option<String> {
    let toml::Value::Table(left) = table.raw(name)? else {
        table.problem(name, shape.to_owned());
        return None;
    };
    let mut inner = TableReader::within(table, name, left);
    let named = inner.take_text(key, SettingKind::Choice(known));
    table.problems.extend(inner.end());
    named
}

/// Reads when a call without a first token is also sent to a second target.
fn hedge(table: &mut TableReader) -> Option<HedgePolicy> {
    const SHAPE: &str = "must be a table such as { after = \"p95\", share = 0.05 }";
    let toml::Value::Table(left) = table.raw("hedge")? else {
        table.problem("hedge", SHAPE.to_owned());
        return None;
    };
    let mut inner = TableReader::within(table, "hedge", left);
    let after = inner.need("after");
    let percent = after.as_deref().and_then(|text| text.strip_prefix('p')?.parse().ok());
    let percent = percent.filter(|percent| (1..=99).contains(percent));
    if let (Some(text), None) = (&after, percent) {
        inner.problem("after", format!("\"{text}\" is not a percentile such as \"p95\", from p1 to p99"));
    }
    let share = inner.raw("share");
    let part =
        share.as_ref().and_then(|share| share.as_float().or(share.as_integer().map(|whole| whole as f64)));
    let part = part.filter(|part| (0.001..=1.0).contains(part));
    if part.is_none() {
        let found = share.map_or_else(|| "nothing".to_owned(), |share| share.to_string());
        inner.problem("share", format!("{found} is not a share of the calls such as 0.05, from 0.001 to 1"));
    }
    table.problems.extend(inner.end());
    Some(HedgePolicy { after_percent: percent?, most_permille: (part? * 1e3).round() as u16 })
}

/// Reads the `path` of a table with targets. With tokenizer assets, the gateway sends token ids.
fn words(table: &mut TableReader) -> Option<WordsAt> {
    let path = table.take_text("path", SettingKind::Text)?;
    if path == DEMO_PATH {
        return Some(WordsAt::Demo);
    }
    let path = PathBuf::from(path);
    if let Some(why) = not_a_model(&path) {
        table.problem("path", why);
    }
    Some(WordsAt::Files(path))
}

/// Parses the flag `--upstream NAME=KIND:URL` as an `[[upstreams]]` table. All models that the upstream lists are
/// served.
pub fn upstream_flag(text: &str) -> Result<toml::Table, String> {
    let shape = || format!("`{text}` must be NAME=KIND:URL, such as openai=openai:https://api.openai.com");
    let (name, rest) = text.split_once('=').ok_or_else(shape)?;
    let (kind, url) = rest.split_once(':').ok_or_else(shape)?;
    if url.starts_with("//") {
        let kinds = UpstreamKind::ALL.map(UpstreamKind::name).join(", ");
        return Err(format!(
            "`{text}` names no kind before the address: NAME=KIND:URL, where KIND is one of {kinds}"
        ));
    }
    let mut table = toml::Table::new();
    for (key, value) in [("name", name), ("kind", kind), ("url", url)] {
        table.insert(key.to_owned(), toml::Value::String(value.to_owned()));
    }
    table.insert("serve".to_owned(), toml::Value::Boolean(true));
    Ok(table)
}

/// Parses the flag `--model NAME=UPSTREAM/MODEL,UPSTREAM/MODEL`. Returns `None` if no target names a known upstream.
/// With `@PATH` at the end, the targets get token ids, made with the tokenizer assets at that path. Model names may
/// contain an `@`, so a path must begin with `/` or `.`, or be the demo model's.
pub fn targets_flag(text: &str, upstreams: &[String]) -> Option<toml::Table> {
    let (name, targets) = text.split_once('=')?;
    let is_path = |path: &str| path.starts_with(['/', '.']) || path == DEMO_PATH;
    let at = targets.match_indices('@').find(|(at, _)| targets.get(at + 1..).is_some_and(is_path));
    let (targets, path) = match at.and_then(|(at, _)| targets.split_at_checked(at)) {
        Some((targets, path)) => (targets, path.strip_prefix('@')),
        None => (targets, None),
    };
    let targets: Vec<&str> = targets.split(',').map(str::trim).collect();
    let of_upstream = |target: &&str| {
        target.split_once('/').is_some_and(|(upstream, _)| upstreams.iter().any(|known| known == upstream))
    };
    if !targets.iter().any(of_upstream) {
        return None;
    }
    let mut table = toml::Table::new();
    table.insert("name".to_owned(), toml::Value::String(name.to_owned()));
    let targets = targets.into_iter().map(|target| toml::Value::String(target.to_owned())).collect();
    table.insert("targets".to_owned(), toml::Value::Array(targets));
    if let Some(path) = path {
        table.insert("path".to_owned(), toml::Value::String(path.to_owned()));
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_flag_names_an_upstream_its_kind_and_its_address() {
        let table = upstream_flag("gpu=vllm:http://10.0.0.7:8000/v1").unwrap();
        assert_eq!(table["name"].as_str(), Some("gpu"));
        assert_eq!(table["kind"].as_str(), Some("vllm"));
        assert_eq!(table["url"].as_str(), Some("http://10.0.0.7:8000/v1"));
        assert_eq!(table["serve"].as_bool(), Some(true));
        for (text, words) in [
            ("http://h", "must be NAME=KIND:URL"),
            ("gpu=vllm", "must be NAME=KIND:URL"),
            ("gpu=http://h", "names no kind before the address"),
        ] {
            let why = upstream_flag(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn a_model_has_targets_where_an_upstream_is_named_and_a_path_otherwise() {
        let known = ["a".to_owned(), "b".to_owned()];
        let table = targets_flag("m=a/x/y, b/z", &known).unwrap();
        assert_eq!(table["targets"].as_array().unwrap().len(), 2);
        assert!(targets_flag("m=/models/a", &known).is_none());
        assert!(targets_flag("m=c/x", &known).is_none());
        for (text, first, path) in [
            ("m=a/x@/models/a@b", "a/x", Some("/models/a@b")),
            ("m=a/x@../a", "a/x", Some("../a")),
            ("m=a/x@builtin:demo", "a/x", Some("builtin:demo")),
            ("m=a/x@2026", "a/x@2026", None),
            ("m=a/x@2026@./y,z", "a/x@2026", Some("./y,z")),
        ] {
            let table = targets_flag(text, &known).unwrap();
            assert_eq!(table["targets"].as_array().unwrap()[0].as_str(), Some(first), "{text}");
            assert_eq!(table.get("path").and_then(toml::Value::as_str), path, "{text}");
        }
        assert_eq!(RelayTarget::parse("a/x/y").unwrap().model, "x/y");
        assert!(RelayTarget::parse("a/").is_err() && RelayTarget::parse("x").is_err());
    }

    #[test]
    fn a_key_may_stand_in_a_variable_named_after_its_upstream() {
        assert_eq!(key_variable("my-gpu.1"), "HEADRACE_UPSTREAM_MY_GPU_1_KEY");
        for (name, good) in [("openai", true), ("", false), ("a/b", false), ("a b", false)] {
            assert_eq!(bad_name(name).is_none(), good, "{name}");
        }
    }

    #[test]
    fn responses_are_passed_to_who_says_that_it_speaks_them() {
        let passes = |kind: &str, how: &str| {
            let text = format!(
                "[[upstreams]]\nname = \"a\"\nkind = \"{kind}\"\nurl = \"http://127.0.0.1:9\"\n{how}"
            );
            let mut settings = super::super::layers::SettingLayers::defaults();
            settings.file(Path::new("h.toml"), &text);
            let config = super::super::ServerSettings::from_settings(settings, false);
            config.map(|config| config.upstreams[0].passes_responses).map_err(|error| error.to_string())
        };
        assert_eq!(passes("openai", ""), Ok(false), "nothing changes for who says nothing");
        assert_eq!(passes("openai", "responses = \"translate\""), Ok(false));
        assert_eq!(passes("vllm", "responses = \"pass\""), Ok(true));
        assert!(passes("anthropic", "responses = \"pass\"").unwrap_err().contains("OpenAI's dialect"));
        assert!(passes("openai", "responses = \"maybe\"").unwrap_err().contains("translate, pass"));
    }
}
