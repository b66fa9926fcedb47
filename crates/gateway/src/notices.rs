//! Names whose end is dated: what a caller is told until then, and what becomes of its calls from then on. Must not know a stage.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{HttpDate, ModelName, UnixNanos};

/// When a name ends, and what comes after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// From when on it is no more.
    pub retires: UnixNanos,
    /// From when on it is not to be used for anything new; without that, its end.
    pub deprecated: Option<UnixNanos>,
    /// What is to be used instead.
    pub successor: Option<ModelName>,
    /// The address of a page about it.
    pub link: Option<String>,
    /// From its end on, its calls go to the successor. Otherwise they are refused.
    pub moves: bool,
}

impl Notice {
    /// Whether its end has come.
    pub(crate) fn is_over(&self, now: UnixNanos) -> bool {
        now >= self.retires
    }

    /// Who takes its calls now, if that is no more itself.
    pub(crate) fn moved(&self, now: UnixNanos) -> Option<&ModelName> {
        self.successor.as_ref().filter(|_| self.moves && self.is_over(now))
    }

    /// What an answer's headers say of it: `deprecation` (RFC 9745), `sunset` (RFC 8594), and links to what comes after it
    /// (`successor-version`, RFC 5829) and to a page about it.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
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

    /// Why a name is refused that is no more.
    pub(crate) fn refusal(&self, name: &ModelName) -> String {
        let date = Rfc3339(self.retires);
        let instead = match &self.successor {
            Some(successor) => format!("Use `{successor}`"),
            None => "`GET /v1/models` lists those that you may use".to_owned(),
        };
        let page = self.link.as_ref().map(|page| format!("; learn more here: {page}")).unwrap_or_default();
        format!("The model `{name}` has been retired on {date}. {instead}{page}.")
    }
}

/// Where a model is described, if its name can stand in an address as it is.
fn path_of(name: &str) -> Option<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':' | b'~');
    name.bytes().all(plain).then(|| format!("/v1/models/{name}"))
}

/// What tells the caller of a name that may lead elsewhere tomorrow where it led today.
pub(crate) fn alias_header(asked: &str, served: &str) -> Option<(&'static str, String)> {
    let text = format!("{asked} -> {served}");
    (asked != served && text.is_ascii()).then_some(("x-headrace-alias", text))
}
