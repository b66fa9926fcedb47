//! Settings of judges on other servers: `[[moderation.judges]]`. Must not know which rules ask them.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::NanoDollarsPerMillion;
use headrace_moderation::{JudgesByName, WithoutVerdict};
use headrace_upstream::{HttpJudge, JudgeApi, JudgePrices, JudgeSpec, UpstreamKind, UpstreamSpec};
use secrecy::SecretString;

use super::SettingsReader;
use super::ca::read_authorities;
use super::content_rule_fields::JUDGES;
use super::identity::texts;
use super::key_text::read_key;
use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

/// Bounds of `deadline`, and its default.
const DEADLINE: SettingKind =
    SettingKind::Duration { least: Duration::from_millis(1), most: Duration::from_secs(60) };
const USUAL_DEADLINE: Duration = Duration::from_millis(100);
/// The values of `without_verdict`.
const WITHOUT_VERDICT: &[&str] = &["block", "pass"];
/// Longest question to a chat model, in bytes.
const MAX_QUESTION_BYTES: usize = 16 << 10;
/// Maximum number of judges.
const MAX_JUDGES: usize = 16;

impl SettingsReader {
    /// Reads the judges, by name.
    pub(super) fn judges(&mut self) -> JudgesByName {
        let mut judges = JudgesByName::new();
        for mut table in self.list(JUDGES) {
            if let Some((name, judge)) = judge(&mut table) {
                if judges.len() >= MAX_JUDGES {
                    table.problem("", format!("is one too many: at most {MAX_JUDGES} judges are allowed"));
                } else if judges.insert(name.clone(), Arc::new(judge)).is_some() {
                    table.problem("name", format!("`{name}` is named twice"));
                }
            }
            self.settings.problems.extend(table.end());
        }
        judges
    }
}

/// Reads a `[[moderation.judges]]` table. Returns `None` if a key without a default is missing or wrong.
fn judge(table: &mut TableReader) -> Option<(String, HttpJudge)> {
    let (name, url) = (table.need("name"), table.need("url"));
    let api = table.take_text("api", SettingKind::Choice(JudgeApi::NAMES));
    let api = api.as_deref().and_then(JudgeApi::named).unwrap_or_default();
    let model = table.take_text("model", SettingKind::Text);
    let question = table.take_text("question", SettingKind::Text);
    let categories = texts(table, "categories").unwrap_or_default();
    let threshold_thousandths = threshold(table);
    let deadline = match table.take("deadline", DEADLINE) {
        Some(ParsedValue::Duration(deadline)) => deadline,
        _ => USUAL_DEADLINE,
    };
    let without = table.take_text("without_verdict", SettingKind::Choice(WITHOUT_VERDICT));
    let without_verdict =
        if without.as_deref() == Some("pass") { WithoutVerdict::Pass } else { WithoutVerdict::Block };
    let prices = prices(table);
    let key = key(table);
    let ca_file = match table.take("ca_file", SettingKind::Path) {
        Some(ParsedValue::Path(path)) => {
            read_authorities(&path).map_err(|why| table.problem("ca_file", why)).ok()
        }
        _ => None,
    };
    let is_chat = api == JudgeApi::Chat;
    let wrong = [
        ("model", is_chat && model.is_none(), "is missing: name the chat model to ask"),
        ("question", !is_chat && question.is_some(), "belongs to `api = \"chat\"`"),
        ("categories", is_chat && !categories.is_empty(), "belongs to `api = \"moderations\"`"),
        ("threshold", is_chat && threshold_thousandths.is_some(), "belongs to `api = \"moderations\"`"),
        (
            "question",
            question.as_ref().is_some_and(|text| text.len() > MAX_QUESTION_BYTES),
            "is longer than 16 KiB",
        ),
    ];
    for (key, _, why) in wrong.into_iter().filter(|(_, is_wrong, _)| *is_wrong) {
        table.problem(key, why.to_owned());
    }
    let (name, url) = (name?, url?);
    let mut server = UpstreamSpec::new(&name, UpstreamKind::OpenAi, &url);
    (server.key, server.extra_roots_pem) = (key, ca_file);
    server.timeouts.connect = server.timeouts.connect.min(deadline);
    let spec = JudgeSpec {
        server,
        api,
        model,
        question,
        categories,
        threshold_thousandths,
        deadline,
        without_verdict,
        prices,
    };
    let judge = HttpJudge::new(spec).map_err(|why| table.problem("url", why)).ok()?;
    Some((name, judge))
}

fn key(table: &mut TableReader) -> Option<SecretString> {
    let Some(ParsedValue::Path(path)) = table.take("key_file", SettingKind::Path) else { return None };
    read_key(&path).map_err(|why| table.problem("key_file", why)).ok()
}

/// Reads `input_price` and `output_price`: dollars for a million tokens. A price that is not set is 0 if the other one is.
fn prices(table: &mut TableReader) -> Option<JudgePrices> {
    let mut price = |key| match table.take(key, SettingKind::Dollars)? {
        ParsedValue::Dollars(dollars) => NanoDollarsPerMillion::new(dollars.get())
            .map_err(|_| table.problem(key, "must not be below 0".to_owned()))
            .ok(),
        _ => None,
    };
    let (input, output) = (price("input_price"), price("output_price"));
    let none = NanoDollarsPerMillion::FREE;
    (input.is_some() || output.is_some())
        .then(|| JudgePrices { input: input.unwrap_or(none), output: output.unwrap_or(none) })
}

/// Reads `threshold`: 0.01 to 1.
fn threshold(table: &mut TableReader) -> Option<u16> {
    let score = match table.raw("threshold")? {
        toml::Value::Float(score) => score,
        toml::Value::Integer(1) => 1.0,
        _ => f64::NAN,
    };
    let thousandths = (score * 1000.0).round();
    if !(10.0..=1000.0).contains(&thousandths) {
        table.problem("threshold", "must be a number from 0.01 to 1".to_owned());
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "10 to 1000")]
    Some(thousandths as u16)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::ServerSettings;
    use crate::layers::SettingLayers;

    fn read(text: &str) -> (bool, String) {
        let mut layers = SettingLayers::defaults();
        layers.file(Path::new("h.toml"), text);
        let (settings, layers) = ServerSettings::read(layers, true);
        let faults: Vec<_> = layers.problems.iter().map(ToString::to_string).collect();
        (settings.rules.is_some(), faults.join("\n"))
    }

    const RULE: &str = "
        [[moderation.rules]]
        name = \"guarded\"
        kind = \"judge\"
        judge = \"guard\"
        mode = \"async\"
        action = \"block\"
        applies_to = [\"input\", \"answer\"]
    ";

    #[test]
    fn rules_ask_the_judges_that_are_named() {
        let judge = |more: &str| {
            format!("{RULE}\n[[moderation.judges]]\nname = \"guard\"\nurl = \"http://127.0.0.1:9\"\n{more}")
        };
        for more in [
            "",
            "categories = [\"hate\"]\nthreshold = 0.5\ndeadline = \"2s\"\nwithout_verdict = \"pass\"",
            "api = \"chat\"\nmodel = \"llama-guard\"\nquestion = \"Is it rude?\"",
            "input_price = \"0.20\"\noutput_price = \"0.20\"",
        ] {
            assert_eq!(read(&judge(more)), (true, String::new()), "{more}");
        }
        for (more, expected) in [
            ("api = \"chat\"", "moderation.judges[0].model: is missing"),
            ("question = \"x\"", "moderation.judges[0].question: belongs to"),
            (
                "api = \"chat\"\nmodel = \"m\"\ncategories = [\"a\"]",
                "moderation.judges[0].categories: belongs to",
            ),
            ("threshold = 0", "moderation.judges[0].threshold: must be a number"),
            ("threshold = 1.5", "moderation.judges[0].threshold: must be a number"),
            ("input_price = \"cheap\"", "moderation.judges[0].input_price: "),
            ("output_price = \"-1\"", "moderation.judges[0].output_price: "),
            ("deadline = \"2m\"", "moderation.judges[0].deadline: "),
            ("without_verdict = \"maybe\"", "moderation.judges[0].without_verdict: "),
            ("key_file = \"/does/not/exist\"", "moderation.judges[0].key_file: "),
            ("colour = 1", "moderation.judges[0].colour"),
            (
                "[[moderation.judges]]\nname = \"guard\"\nurl = \"http://127.0.0.1:9\"",
                "`guard` is named twice",
            ),
            ("[[moderation.judges]]\nname = \"other\"\nurl = \"nowhere\"", "moderation.judges[1].url: "),
        ] {
            let (_, faults) = read(&judge(more));
            assert!(faults.contains(expected), "{more}: {faults}");
        }
        let (_, faults) = read(RULE);
        assert!(faults.contains("`guard` is unknown: there are no `[[moderation.judges]]`"), "{faults}");
        let (_, faults) = read(&RULE.replace("judge = \"guard\"", ""));
        assert!(faults.contains("rule `guarded`: `judge` is missing"), "{faults}");
    }
}
