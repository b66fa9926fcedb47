//! The search for calls: the query, the page of results, and the test whether a call matches. Must not know how records
//! are kept.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{AskedAddress, EndUser, KeyId, NanoDollars, OrgId, ProjectId, Stage, UnixNanos};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::call::{CallEndKind, CallRow};
use crate::moderation_filter::ModerationFilter;
use crate::units::utc_midnight;

/// Maximum calls on a page.
pub const MAX_CALLS_PER_PAGE: usize = 500;
/// Maximum bytes of a text that is searched for.
const MAX_TEXT_BYTES: usize = 256;

/// Selects calls that meet all criteria that are set. The default selects all calls. Worker jobs are selected only if
/// `key` is [`headrace_domain::WORKER_JOB_KEY`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallQuery {
    /// The call started at this time or later.
    pub since: Option<UnixNanos>,
    /// The call started before this time.
    pub until: Option<UnixNanos>,
    /// The organisation that pays.
    pub org: Option<OrgId>,
    /// The caller's project.
    pub project: Option<ProjectId>,
    /// The public id of the caller's key.
    pub key: Option<KeyId>,
    /// The end user that the caller named.
    pub user: Option<EndUser>,
    /// A label of the call's `metadata`: its name and its value.
    pub label: Option<(String, String)>,
    /// The address or network of the client.
    pub address: Option<AskedAddress>,
    /// The model that served the call, or the model asked for if none did.
    pub model: Option<String>,
    /// The upstream that answered.
    pub upstream: Option<String>,
    /// How the call ended.
    pub outcome: Option<CallEndKind>,
    /// The stage that refused or failed the call. For other calls, the stage that took the most time.
    pub stage: Option<Stage>,
    /// The server took more nanoseconds than this.
    pub slower_than_ns: Option<u64>,
    /// The call was charged more than this.
    pub dearer_than: Option<NanoDollars>,
    /// Text in the code, the rule or the message of the refusal, failure or cancellation. Ignores the case of ASCII
    /// letters.
    pub text: Option<String>,
    /// What content rules decided about the request or the answer.
    pub moderation: Option<ModerationFilter>,
    /// The name of a content rule that matched the request or the answer. If `moderation` is set, too, the same rule meets
    /// both.
    pub content_rule: Option<String>,
    /// Text in the recorded request or answer, without regard to case. Calls whose content is not recorded do not meet
    /// it. A store of traces does not know contents, so this is checked elsewhere.
    pub content: Option<String>,
}

impl CallQuery {
    /// The names of all filters, in the order of lists.
    pub const NAMES: [&str; 18] = [
        "from",
        "to",
        "org",
        "project",
        "key",
        "user",
        "label",
        "address",
        "model",
        "upstream",
        "outcome",
        "stage",
        "slower_than_ms",
        "dearer_than",
        "text",
        "moderation",
        "content_rule",
        "content",
    ];

    /// Sets one of the [`CallQuery::NAMES`] from its text.
    ///
    /// # Errors
    /// A message that says what the value must be, or that there is no such filter.
    pub fn set(&mut self, name: &str, value: &str, now: UnixNanos) -> Result<(), String> {
        match name {
            "from" => self.since = Some(moment(value, now)?),
            "to" => self.until = Some(moment(value, now)?),
            "org" => self.org = Some(value.parse().map_err(said)?),
            "project" => self.project = Some(value.parse().map_err(said)?),
            "key" => self.key = Some(value.parse().map_err(said)?),
            "user" => self.user = Some(EndUser::named(value).ok_or("it must not be empty")?),
            "label" => self.label = Some(label(value)?),
            "address" => self.address = Some(value.parse()?),
            "model" => self.model = Some(text(value)?),
            "upstream" => self.upstream = Some(text(value)?),
            "text" => self.text = Some(text(value)?),
            "content" => self.content = Some(text(value)?),
            "content_rule" => self.content_rule = Some(text(value)?),
            "moderation" => self.moderation = Some(ModerationFilter::named(value)?),
            "outcome" => {
                let names = || CallEndKind::ALL.map(CallEndKind::name).join(", ");
                self.outcome =
                    Some(CallEndKind::named(value).ok_or_else(|| format!("it must be one of {}", names()))?);
            }
            "stage" => {
                let found = Stage::ALL.into_iter().find(|stage| stage.name() == value);
                let names = || Stage::ALL.map(Stage::name).join(", ");
                self.stage = Some(found.ok_or_else(|| format!("it must be one of {}", names()))?);
            }
            "slower_than_ms" => {
                let bad = || "it must be milliseconds, such as 250 or 0.5".to_owned();
                let millis: f64 = value.parse().map_err(|_| bad())?;
                let time = Duration::try_from_secs_f64(millis / 1e3).map_err(|_| bad())?;
                self.slower_than_ns = Some(u64::try_from(time.as_nanos()).map_err(|_| bad())?);
            }
            "dearer_than" => {
                let bad = |_| "it must be dollars, such as 0.05".to_owned();
                self.dearer_than = Some(NanoDollars::from_dollars(value).map_err(bad)?);
            }
            _ => return Err(format!("there is no such filter: there are {}", Self::NAMES.join(", "))),
        }
        Ok(())
    }

    /// Returns `true` if the call meets all criteria.
    pub fn matches(&self, row: &CallRow) -> bool {
        let is = |asked: &Option<String>, found: Option<&str>| {
            asked.as_deref().is_none_or(|asked| found == Some(asked))
        };
        self.since.is_none_or(|since| row.started >= since)
            && self.until.is_none_or(|until| row.started < until)
            && (self.org.is_none() || self.org == row.org)
            && (self.project.is_none() || self.project == row.project)
            && if self.key.is_some() { self.key == row.key } else { row.job_of.is_none() }
            && (self.user.is_none() || self.user == row.user)
            && self.address.is_none_or(|asked| row.client.is_some_and(|client| asked.matches(&client)))
            && self.label.as_ref().is_none_or(|(name, value)| row.label(name) == Some(value))
            && is(&self.model, row.model())
            && is(&self.upstream, row.upstream.as_deref())
            && self.outcome.is_none_or(|ended| row.ended == ended)
            && self.stage.is_none_or(|stage| row.stage == Some(stage))
            && self.slower_than_ns.is_none_or(|nanos| row.server_ns > nanos)
            && self.dearer_than.is_none_or(|money| row.charged > money)
            && self.text.as_deref().is_none_or(|text| row.said().is_some_and(|said| holds(&said, text)))
            && self.matches_verdicts(row)
    }

    /// Whether one of the call's verdicts meets all criteria about verdicts.
    fn matches_verdicts(&self, row: &CallRow) -> bool {
        let Self { moderation, content_rule, .. } = self;
        (moderation.is_none() && content_rule.is_none())
            || row.verdicts.iter().any(|verdict| {
                moderation.is_none_or(|filter| filter.matches(verdict))
                    && content_rule.as_ref().is_none_or(|rule| *rule == verdict.rule)
            })
    }
}

/// Returns `true` if `whole` contains `part`, ignoring the case of ASCII letters.
fn holds(whole: &str, part: &str) -> bool {
    whole.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
}

fn said(error: impl fmt::Display) -> String {
    error.to_string()
}

fn text(value: &str) -> Result<String, String> {
    if value.is_empty() || value.len() > MAX_TEXT_BYTES {
        return Err(format!("it must have 1 to {MAX_TEXT_BYTES} bytes"));
    }
    Ok(value.to_owned())
}

/// Parses `NAME=VALUE`.
fn label(text: &str) -> Result<(String, String), String> {
    let found = text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('"'));
    let (name, value) = found.ok_or("it must be NAME=VALUE, such as tag=checkout")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses a time: `2026-11-22T21:35:00Z` (any RFC 3339 zone), `2026-11-22` (midnight UTC), or a time before `now`:
/// `90s`, `15m`, `12h`, `7d`.
///
/// # Errors
/// A message that says what the text must be.
pub fn moment(text: &str, now: UnixNanos) -> Result<UnixNanos, String> {
    let ago = || ago_ns(text).map(|ago| UnixNanos::new(now.get().saturating_sub(ago)));
    fixed_moment(text).or_else(ago).ok_or_else(|| {
        "it must be a time such as 2026-11-22T21:35:00Z, a date such as 2026-11-22, or a time ago such as 15m, 12h or 7d"
            .to_owned()
    })
}

/// Parses a time that does not depend on the present one: `2026-11-22T21:35:00Z` (any RFC 3339 zone) or `2026-11-22`
/// (midnight UTC). `None` for any other text.
pub fn fixed_moment(text: &str) -> Option<UnixNanos> {
    utc_midnight(text).or_else(|| {
        let nanos = text.parse::<Timestamp>().ok()?.as_nanosecond();
        Some(UnixNanos::new(u64::try_from(nanos).ok()?))
    })
}

fn ago_ns(text: &str) -> Option<u64> {
    const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(*unit))?;
    let count = text.strip_suffix(unit.0)?;
    let count: u64 = count.bytes().all(|byte| byte.is_ascii_digit()).then(|| count.parse().ok())??;
    count.checked_mul(unit.1)?.checked_mul(1_000_000_000)
}

/// A position in the list of calls, newest first. It stays valid while calls are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallCursor {
    /// Start time of the last call before the position.
    pub started: UnixNanos,
    /// Number of that call in the order of storage.
    pub number: u64,
}

impl fmt::Display for CallCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.started.get(), self.number)
    }
}

/// The text is not a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCursor;

impl fmt::Display for NoCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it must be what `next` of a page before this one said")
    }
}

impl std::error::Error for NoCursor {}

impl FromStr for CallCursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        let (started, number) = text.split_once('.').ok_or(NoCursor)?;
        let hex = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten().ok_or(NoCursor)
        };
        Ok(Self { started: UnixNanos::new(hex(started)?), number: hex(number)? })
    }
}

/// A page of calls, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallPage {
    /// The calls of the page.
    pub calls: Vec<CallRow>,
    /// The cursor of the next page. `None` if there are no more calls.
    pub next: Option<CallCursor>,
    /// How far back the search came, if it stopped at the bound on examined calls. The page is then short, and `next`
    /// continues from there.
    pub searched_to: Option<UnixNanos>,
    /// Number of older calls that cannot be found yet, because an older program wrote their file and it is still being
    /// indexed.
    pub unindexed: u64,
}

impl CallPage {
    /// The fields `data`, `next`, `searched_to` and `unindexed`.
    pub fn json(&self) -> Value {
        json!({
            "object": "list",
            "data": self.calls.iter().map(CallRow::json).collect::<Vec<_>>(),
            "next": self.next.map(|next| next.to_string()),
            "searched_to": self.searched_to.map(|time| Rfc3339(time).to_string()),
            "unindexed": self.unindexed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_set_by_name_and_say_what_they_must_be() {
        let now = UnixNanos::new(1_795_224_848_000_000_000);
        let mut query = CallQuery::default();
        for (name, value) in [
            ("from", "2026-11-20"),
            ("to", "2026-11-21T01:00:00+01:00"),
            ("org", "acme"),
            ("project", "shop"),
            ("key", "key_1"),
            ("user", "eva@example.com"),
            ("label", "tag=a=b"),
            ("model", "demo"),
            ("upstream", "vllm"),
            ("outcome", "refused"),
            ("stage", "hold"),
            ("slower_than_ms", "0.5"),
            ("dearer_than", "0.01"),
            ("text", "budget"),
            ("moderation", "dry_run"),
            ("content_rule", "personal-data"),
        ] {
            query.set(name, value, now).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        assert_eq!(query.since.map(UnixNanos::seconds), Some(1_795_132_800));
        assert_eq!(query.until.map(UnixNanos::seconds), Some(1_795_219_200));
        assert_eq!(query.slower_than_ns, Some(500_000));
        assert_eq!(query.dearer_than, Some(NanoDollars::new(10_000_000)));
        assert_eq!((query.outcome, query.stage), (Some(CallEndKind::Refused), Some(Stage::Hold)));
        for (name, value, reason) in [
            ("from", "yesterday", "2026-11-22T21:35:00Z"),
            ("to", "-1h", "a time ago"),
            ("org", "a b", "org id"),
            ("outcome", "good", "completed, refused, cancelled, failed"),
            ("stage", "queueing", "connect, authenticate"),
            ("slower_than_ms", "-1", "milliseconds"),
            ("slower_than_ms", "NaN", "milliseconds"),
            ("dearer_than", "1e9", "dollars"),
            ("text", "", "1 to 256 bytes"),
            ("moderation", "stopped", "any, blocked, redacted, flagged, dry_run, no_verdict"),
            ("content_rule", "", "1 to 256 bytes"),
            ("label", "tag", "NAME=VALUE"),
            ("colour", "red", "from, to, org"),
        ] {
            let why = query.set(name, value, now).unwrap_err();
            assert!(why.contains(reason), "{name}: {why}");
        }
    }

    #[test]
    fn a_moment_is_a_time_a_day_or_so_long_ago() {
        let now = UnixNanos::new(1_795_224_848_000_000_000);
        let seconds = |text| moment(text, now).map(UnixNanos::seconds);
        assert_eq!(seconds("2026-11-21"), Ok(1_795_219_200));
        assert_eq!(seconds("2026-11-21T00:00:01.5Z"), Ok(1_795_219_201));
        assert_eq!(seconds("90s"), Ok(1_795_224_758));
        assert_eq!(seconds("2h"), Ok(1_795_217_648));
        assert_eq!(seconds("99999d"), Ok(0));
        for bad in ["", "d", "1w", "2026-02-30", "18446744073709551615d", "+1h", "１h"] {
            assert!(moment(bad, now).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = CallCursor { started: UnixNanos::new(u64::MAX), number: 17 };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", ".", "1", "1.", ".1", "1.2.3", "x.1", "+1.1", "11111111111111111.1"] {
            assert_eq!(bad.parse::<CallCursor>(), Err(NoCursor), "{bad}");
        }
    }
}
