//! The page at `/`, for people who open the API's address in a browser: what this address serves, and where the console
//! and the manual are. Clients that do not ask for HTML get the JSON of `/healthz`. Must not know who signs in, or what
//! the console shows.

use std::fmt::Write;
use std::sync::OnceLock;

use bytes::Bytes;
use headrace_call_api::{AnswerBody, CallAnswer, PeerAddress};
use http::HeaderMap;
use http::header::ACCEPT;

use crate::answers::health;

/// Allows only the page's own style: no script, no image, no external address.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The manual on the web, for readers without access to this server's copy.
const MANUAL: &str = "https://github.com/headrace/headrace/tree/main/docs";
const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
<title>Headrace</title>\n<style>\n:root { color-scheme: light dark; }\nbody { max-width: 40rem; margin: 12vh auto; padding: 0 20px; font: 16px/1.6 system-ui, sans-serif; }\n\
h1 { font-size: 24px; margin: 0 0 8px; }\ncode { font-size: 14px; overflow-wrap: anywhere; }\nli { margin: 8px 0; }\n</style>\n</head>\n<body>\n<main>\n";
const WHAT: &str = "<h1>Headrace</h1>\n<p>This address answers calls to language models, in the dialects of OpenAI and Anthropic. Programs use it as \
their base URL, with a key: <code>/v1/chat/completions</code>, <code>/v1/responses</code>, <code>/v1/messages</code>, <code>/v1/models</code>.</p>\n<ul>\n";

/// Data for the page.
#[derive(Debug, Default)]
pub(crate) struct HomePage {
    /// URL of the console, once it is open.
    pub(crate) console: OnceLock<String>,
}

impl HomePage {
    /// Answers a request for `/`. Only peers on this machine see the console's address.
    pub(crate) fn answer<S>(&self, headers: &HeaderMap, peer: &PeerAddress) -> CallAnswer<S> {
        if !wants_html(headers) {
            return health().with_header("vary", "accept");
        }
        let console = self.console.get().filter(|_| peer.address.ip().to_canonical().is_loopback());
        let body = AnswerBody::Whole(Bytes::from(page(console.map(String::as_str))));
        let page =
            CallAnswer { status: 200, content_type: "text/html; charset=utf-8", headers: Vec::new(), body };
        page.with_header("content-security-policy", POLICY)
            .with_header("x-content-type-options", "nosniff")
            .with_header("referrer-policy", "no-referrer")
            .with_header("vary", "accept")
    }
}

/// Returns whether a client asks for HTML by name, as browsers do. `*/*` alone, which curl and SDKs send, does not
/// count.
fn wants_html(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_html = parts.next().is_some_and(|media| media.eq_ignore_ascii_case("text/html"));
            is_html
                && !parts.any(|part| {
                    part.strip_prefix("q=").is_some_and(|q| {
                        q.trim_end_matches('0').trim_end_matches('.').trim_end_matches('0').is_empty()
                    })
                })
        })
}

fn page(console: Option<&str>) -> String {
    let mut page = format!("{HEAD}{WHAT}");
    // Writing to a string cannot fail.
    let _ = match console {
        Some(console) => {
            let console = escaped(console);
            write!(
                page,
                "<li><a href=\"{console}/\">The console</a>: calls, costs, keys, and a playground. \
                 <code>headrace operators link NAME</code> makes a link that signs in.</li>\n\
                 <li><a href=\"{console}/docs/\">The manual</a> of this version.</li>\n"
            )
        }
        None => write!(
            page,
            "<li>The console shows calls, costs and keys. It has an address of its own, which the server prints at its start.</li>\n\
             <li><a href=\"{MANUAL}\">The manual</a>.</li>\n"
        ),
    };
    page.push_str("<li><a href=\"/healthz\">/healthz</a> says whether the server is alive, <a href=\"/readyz\">/readyz</a> whether it serves.</li>\n</ul>\n</main>\n</body>\n</html>\n");
    page
}

/// Escapes a text for HTML, including attributes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn answer(home: &HomePage, accept: Option<&str>, address: &str) -> CallAnswer<()> {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
        }
        home.answer(&headers, &PeerAddress { address: address.parse().unwrap() })
    }

    fn text(answer: CallAnswer<()>) -> String {
        let AnswerBody::Whole(body) = answer.body else { panic!() };
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn browsers_get_a_page_and_programs_the_json_that_they_know() {
        let home = HomePage::default();
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, is_page) in [
            (Some(browser), true),
            (Some("TEXT/HTML"), true),
            (Some("application/json, text/html;q=0.1"), true),
            (Some("text/html;q=0"), false),
            (Some("text/html; q=0.000"), false),
            (Some("*/*"), false),
            (Some("application/json"), false),
            (Some("text/*"), false),
            (Some("text/html2"), false),
            (Some(""), false),
            (None, false),
        ] {
            let reply = answer(&home, accept, "127.0.0.1:9");
            assert_eq!(reply.content_type.starts_with("text/html"), is_page, "{accept:?}");
            assert!(reply.headers.contains(&("vary", "accept".to_owned())), "{accept:?}");
            let body = text(reply);
            assert_eq!(body == r#"{"status":"alive"}"#, !is_page, "{accept:?}: {body}");
        }
    }

    #[test]
    fn the_console_is_shown_to_this_machine_alone() {
        let home = HomePage::default();
        home.console.set("http://127.0.0.1:8081\"><script>".to_owned()).unwrap();
        let shown = "href=\"http://127.0.0.1:8081&quot;&gt;&lt;script&gt;/docs/\"";
        for (peer, is_shown) in [
            ("127.0.0.1:9", true),
            ("[::1]:9", true),
            ("[::ffff:127.0.0.1]:9", true),
            ("192.0.2.1:9", false),
            ("[2001:db8::1]:9", false),
        ] {
            let page = text(answer(&home, Some("text/html"), peer));
            assert_eq!(page.contains(shown), is_shown, "{peer}: {page}");
            assert_eq!(page.contains(MANUAL), !is_shown, "{peer}");
            assert!(!page.contains("<script"), "{page}");
        }
    }
}
