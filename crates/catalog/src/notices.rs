//! Notices of retirement: what callers learn before a name retires, and what happens to its calls afterwards.
//! Knows no stage.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{HttpDate, ModelName, UnixNanos};

/// When a name retires, and what replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetirementNotice {
    /// When the name retires.
    pub retires: UnixNanos,
    /// From when on the name should not be used for anything new. If absent, the time of retirement.
    pub deprecated: Option<UnixNanos>,
    /// The name to use instead.
    pub successor: Option<ModelName>,
    /// URL of a page about the retirement.
    pub link: Option<String>,
    /// After the retirement, calls go to the successor. Otherwise they are refused.
    pub moves: bool,
}

impl RetirementNotice {
    /// Whether the name has retired.
    pub fn is_over(&self, now: UnixNanos) -> bool {
        now >= self.retires
    }

    /// The successor that takes the name's calls now. `None` if the name has not retired or its calls do not move.
    pub fn moved(&self, now: UnixNanos) -> Option<&ModelName> {
        self.successor.as_ref().filter(|_| self.moves && self.is_over(now))
    }

    /// Headers for answers: `deprecation` (RFC 9745), `sunset` (RFC 8594), and links to the successor
    /// (`successor-version`, RFC 5829) and to a page about the retirement.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let since = self.deprecated.unwrap_or(self.retires);
        let successor = self.successor.as_ref().and_then(|name| path_of(name.as_str()));
        let successor = successor.map(|path| format!("<{path}>; rel=\"successor-version\""));
        let page =
            self.link.as_ref().map(|page| format!("<{page}>; rel=\"deprecation\"; type=\"text/html\""));
        let links: Vec<String> = successor.into_iter().chain(page).collect();
        let links = (!links.is_empty()).then(|| ("link", links.join(", ")));
        let dates = [
            ("deprecation", format!("@{}", since.seconds())),
            ("sunset", HttpDate(self.retires).to_string()),
        ];
        dates.into_iter().chain(links)
    }

    /// The message that refuses a retired name.
    pub fn refusal(&self, name: &ModelName) -> String {
        let date = Rfc3339(self.retires);
        let instead = match &self.successor {
            Some(successor) => format!("Use `{successor}`"),
            None => "`GET /v1/models` lists those that you may use".to_owned(),
        };
        let page = self.link.as_ref().map(|page| format!("; learn more here: {page}")).unwrap_or_default();
        format!("The model `{name}` has been retired on {date}. {instead}{page}.")
    }
}

/// The path of a model's description. `None` if the name would have to be escaped in a URL.
fn path_of(name: &str) -> Option<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':' | b'~');
    name.bytes().all(plain).then(|| format!("/v1/models/{name}"))
}

/// The header that names the model that an alias led to. `None` if both names are equal or not ASCII.
pub fn alias_header(asked: &str, served: &str) -> Option<(&'static str, String)> {
    let text = format!("{asked} -> {served}");
    (asked != served && text.is_ascii()).then_some(("x-headrace-alias", text))
}
