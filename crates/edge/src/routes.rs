//! Every path that the edge answers, in one table. Any other path is 404. Each route states the credential that it
//! needs.

use headrace_call_api::{ObjectMethod, ObjectOperation, Question, RequestTarget};
use headrace_domain::{Dialect, Endpoint};
use http::Method;
use http::request::Parts;

/// The credential that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAccess {
    /// None. The answer reveals only whether the server lives.
    Public,
    /// A key. Requests without a valid one are answered with 401.
    Key,
    /// A ticket of another server of the same installation. Other requests are answered with 401, or with 404 if there
    /// is no internal API.
    Ticket,
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteTarget {
    /// A call.
    Call(Endpoint),
    /// A question with a body.
    Question(Question),
    /// The list of models.
    Models,
    /// One model.
    Model,
    /// The trace of a request.
    Request,
    /// The signed receipt of a request.
    Receipt,
    /// The public keys that verify receipts.
    ReceiptKeys,
    /// The page for people. Programs get the answer of [`RouteTarget::Health`].
    Home,
    /// Whether the process is alive.
    Health,
    /// Whether calls would be served.
    Ready,
    /// Stored objects.
    Objects,
    /// The internal API.
    InternalApi,
}

impl RouteTarget {
    /// Returns what a request of this route asks of the call service. `rest` is the value of the path's parameter, and
    /// `dialect` returns the dialect of requests whose path does not decide it. Returns `None` if the path or the query of the
    /// request cannot be decoded, or if the route is not for the call service.
    pub(crate) fn of_service(
        self,
        head: &Parts,
        rest: &str,
        dialect: impl FnOnce() -> Dialect,
    ) -> Option<RequestTarget> {
        Some(match self {
            Self::Call(endpoint) => RequestTarget::Call(endpoint),
            Self::Question(question) => RequestTarget::Question(question),
            Self::Models => {
                let query = query_fields(head.uri.query()).unwrap_or_default();
                RequestTarget::ModelList { dialect: dialect(), query }
            }
            Self::Model => RequestTarget::Model { dialect: dialect(), name: percent_decoded(rest)? },
            Self::Request => RequestTarget::RequestTrace { id: percent_decoded(rest)? },
            Self::Receipt => RequestTarget::Receipt { id: percent_decoded(rest)? },
            Self::Objects => RequestTarget::Object(ObjectOperation {
                method: match head.method {
                    Method::POST => ObjectMethod::Post,
                    Method::DELETE => ObjectMethod::Delete,
                    _ => ObjectMethod::Get,
                },
                path: percent_decoded(head.uri.path().strip_prefix("/v1/")?)?,
                query: query_fields(head.uri.query())?,
            }),
            Self::Home | Self::Health | Self::Ready | Self::ReceiptKeys | Self::InternalApi => return None,
        })
    }
}

/// One path of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeRoute {
    /// The methods, as in the `allow` header. `HEAD` accompanies every `GET`.
    pub methods: &'static str,
    /// The path. At its end, `{name}` matches one segment and `{*name}` everything that follows.
    pub path: &'static str,
    /// The required credential.
    pub access: RouteAccess,
    /// The target of the path.
    pub target: RouteTarget,
}

/// All routes.
pub const ROUTES: &[EdgeRoute] = &[
    post("/v1/chat/completions", Endpoint::ChatCompletions),
    post("/v1/completions", Endpoint::Completions),
    post("/v1/messages", Endpoint::Messages),
    post("/v1/responses", Endpoint::Responses),
    ask("/v1/messages/count_tokens", Question::CountTokens),
    ask("/tokenize", Question::Tokenize),
    ask("/detokenize", Question::Detokenize),
    objects("/v1/responses/{*name}"),
    objects("/v1/conversations"),
    objects("/v1/conversations/{*name}"),
    objects("/v1/moderations"),
    objects("/v1/files"),
    objects("/v1/files/{*name}"),
    objects("/v1/uploads"),
    objects("/v1/uploads/{*name}"),
    objects("/v1/batches"),
    objects("/v1/batches/{*name}"),
    objects("/v1/messages/batches"),
    objects("/v1/messages/batches/{*name}"),
    post("/v1/embeddings", Endpoint::Embeddings),
    post("/v1/rerank", Endpoint::Rerank),
    post("/v2/rerank", Endpoint::Rerank),
    post("/v1/score", Endpoint::Score),
    get("/v1/models", RouteAccess::Key, RouteTarget::Models),
    get("/v1/models/{*name}", RouteAccess::Key, RouteTarget::Model),
    get("/v1/requests/{id}", RouteAccess::Key, RouteTarget::Request),
    get("/v1/receipts/{id}", RouteAccess::Key, RouteTarget::Receipt),
    // Some clients check here whether the server is alive.
    get("/", RouteAccess::Public, RouteTarget::Home),
    get("/.well-known/headrace-receipts.json", RouteAccess::Public, RouteTarget::ReceiptKeys),
    get("/healthz", RouteAccess::Public, RouteTarget::Health),
    get("/readyz", RouteAccess::Public, RouteTarget::Ready),
    EdgeRoute {
        methods: "GET, HEAD, POST",
        path: "/internal/v1/{*name}",
        access: RouteAccess::Ticket,
        target: RouteTarget::InternalApi,
    },
];

const fn post(path: &'static str, endpoint: Endpoint) -> EdgeRoute {
    EdgeRoute { methods: "POST", path, access: RouteAccess::Key, target: RouteTarget::Call(endpoint) }
}

const fn ask(path: &'static str, question: Question) -> EdgeRoute {
    EdgeRoute { methods: "POST", path, access: RouteAccess::Key, target: RouteTarget::Question(question) }
}

const fn objects(path: &'static str) -> EdgeRoute {
    EdgeRoute {
        methods: "GET, HEAD, POST, DELETE",
        path,
        access: RouteAccess::Key,
        target: RouteTarget::Objects,
    }
}

const fn get(path: &'static str, access: RouteAccess, target: RouteTarget) -> EdgeRoute {
    EdgeRoute { methods: "GET, HEAD", path, access, target }
}

/// Returns the route of `path` and the value of its parameter, still percent-encoded. The value is empty if the route
/// has no parameter.
pub(crate) fn find(path: &str) -> Option<(&'static EdgeRoute, &str)> {
    ROUTES.iter().find_map(|route| Some((route, route.rest_of(path)?)))
}

/// Returns the path of the table that `path` most likely means. Corrects the effects of a wrong base URL: `/v1` twice
/// or missing, `//`, a trailing slash.
pub(crate) fn meant(path: &str) -> Option<String> {
    let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    while segments.starts_with(&["v1", "v1"]) {
        segments.remove(0);
    }
    let plain = format!("/{}", segments.join("/"));
    let prefixed = format!("/v1{plain}");
    [plain, prefixed].into_iter().find(|meant| find(meant).is_some())
}

impl EdgeRoute {
    fn rest_of<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((prefix, parameter)) = self.path.split_once('{') else {
            return (self.path == path).then_some("");
        };
        let rest = path.strip_prefix(prefix)?;
        (!rest.is_empty() && (parameter.starts_with('*') || !rest.contains('/'))).then_some(rest)
    }
}

/// Decodes percent-encoding. Returns `None` if it is broken or not UTF-8.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

/// Returns the decoded fields of a query, or `None` if one cannot be decoded.
pub(crate) fn query_fields(query: Option<&str>) -> Option<Vec<(String, String)>> {
    let fields = query.unwrap_or_default().split('&').filter(|field| !field.is_empty());
    let field = |field: &str| {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        Some((percent_decoded(&name.replace('+', " "))?, percent_decoded(&value.replace('+', " "))?))
    };
    fields.map(field).collect()
}

/// Returns the model that a query names (`model=NAME`), if it can be decoded.
pub(crate) fn model_asked(query: Option<&str>) -> Option<String> {
    let mut fields = query?.split('&');
    percent_decoded(fields.find_map(|field| field.strip_prefix("model="))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_where_the_table_says() {
        for (path, expected) in [
            ("/v1/chat/completions", Some(("/v1/chat/completions", ""))),
            ("/v1/models", Some(("/v1/models", ""))),
            ("/v1/models/", None),
            ("/v1/models/a/b", Some(("/v1/models/{*name}", "a/b"))),
            ("/v1/requests/req_1", Some(("/v1/requests/{id}", "req_1"))),
            ("/v1/requests/req_1/x", None),
            ("/v1/receipts/req_1", Some(("/v1/receipts/{id}", "req_1"))),
            ("/v1/chat/completions/", None),
            ("//v1/models", None),
            ("/V1/models", None),
            ("/", Some(("/", ""))),
            ("/metrics", None),
            ("*", None),
            ("", None),
        ] {
            assert_eq!(find(path).map(|(route, rest)| (route.path, rest)), expected, "{path}");
        }
    }

    #[test]
    fn what_a_wrong_base_url_meant_is_found() {
        for (path, expected) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/messages", Some("/v1/messages")),
            ("/v1/v1/messages", Some("/v1/messages")),
            ("/v1/v1/v1/models", Some("/v1/models")),
            ("//v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1//chat/completions/", Some("/v1/chat/completions")),
            ("/v1/models/", Some("/v1/models")),
            ("/models/a/b", Some("/v1/models/a/b")),
            ("/v1/healthz", None),
            ("/healthz/", Some("/healthz")),
            ("/v1/images/generations", None),
            ("/tokenize/", Some("/tokenize")),
            ("/v1/messages/count_tokens/", Some("/v1/messages/count_tokens")),
            ("//", Some("/")),
            ("*", None),
        ] {
            assert_eq!(meant(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn fields_of_a_query_are_decoded() {
        let fields = |query| {
            let fields = query_fields(query)?;
            Some(fields.into_iter().map(|(a, b)| format!("{a}:{b}")).collect::<Vec<_>>())
        };
        assert_eq!(
            fields(Some("limit=5&after_id=a%2Fb&beta=true&x&&z=")).unwrap(),
            ["limit:5", "after_id:a/b", "beta:true", "x:", "z:"]
        );
        assert_eq!(fields(Some("limit=5&y=%ff")), None);
        assert_eq!(fields(None), Some(Vec::new()));
    }

    #[test]
    fn percent_decoding() {
        for (text, expected) in [
            ("plain", Some("plain")),
            ("a%2Fb", Some("a/b")),
            ("%C3%A9", Some("é")),
            ("%", None),
            ("%2", None),
            ("%zz", None),
            ("%ff", None),
        ] {
            assert_eq!(percent_decoded(text).as_deref(), expected, "{text}");
        }
    }
}
