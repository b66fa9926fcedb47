//! Generates the page that explains errors, `docs/errors.md`, and one page per error in `docs/errors`, from the table
//! of refusals. So every name in an answer or a trace has an anchor and a page. Must not know who refuses.

mod admin;

use std::collections::BTreeMap;
use std::path::Path;

use headrace_domain::{Code, Dialect, RequestId};
use headrace_explain::ErrorPage;
use headrace_wire::{ErrorFacts, LimitFacts, error_body};

use crate::prose::wrapped;
use crate::shell::Failure;

pub(crate) const PAGE: &str = "docs/errors.md";

/// The folder of the pages of single codes.
const PAGES: &str = "docs/errors";

/// The text before the first chapter.
const HEAD: &str = include_str!("errors_page/head.md");

/// A chapter of the page. It starts with a code of the table and ends where the next chapter starts.
struct Chapter {
    first: Code,
    title: &'static str,
    /// Paragraphs before the chapter's codes.
    intro: &'static [&'static str],
}

const CHAPTERS: &[Chapter] = &[
    Chapter { first: Code::NotFound, title: "The connection (stage `connect`)", intro: &[] },
    Chapter {
        first: Code::MissingApiKey,
        title: "Who calls (stage `authenticate`)",
        intro: &[
            "Answers to invalid keys do not name the reason. The trace shows operators the reason (`rule`).",
        ],
    },
    Chapter {
        first: Code::RequestTooLarge,
        title: "The body (stage `receive`)",
        intro: &[
            "The server reads a body only after it has identified the caller. If a body is left unread, the server closes the \
                  connection (HTTP/1.1) or resets the stream (HTTP/2).",
        ],
    },
    Chapter {
        first: Code::InvalidJson,
        title: "The request (stage `parse`)",
        intro: &[
            "`param` names the field at fault. A parameter that could change the answer is either applied or refused by \
                  name, never dropped.",
        ],
    },
    Chapter {
        first: Code::EndpointNotEntitled,
        title: "What the key may use (stages `authorize`, `route`)",
        intro: &[],
    },
    Chapter { first: Code::ContentPolicy, title: "Content (stage `moderate`)", intro: &[] },
    Chapter { first: Code::ContextLengthExceeded, title: "The prompt (stage `render`)", intro: &[] },
    Chapter {
        first: Code::CallTooLarge,
        title: "Memory (stages `parse`, `render`)",
        intro: &[
            "The memory of a call is estimated from its size and its parameters (`n`, `max_tokens`, log-probabilities, \
                  `echo`, `stop`). It is reserved until the last byte of the answer is sent.",
        ],
    },
    Chapter {
        first: Code::RequestsPerMinute,
        title: "Limits (stage `hold`)",
        intro: &[
            "A request and a concurrency slot are taken when the key is known, and tokens when they are counted. Each \
                  time, the limits of key → project → organisation (→ model, with the tokens) are taken all together \
                  or not at all. An admitted request stays counted even if a later stage refuses it. Its slot and its \
                  unused tokens are returned. `limit.scope` names the owner of the limit. A call that can never fit \
                  gets a 400 without `Retry-After`.",
        ],
    },
    Chapter {
        first: Code::OutOfMoney,
        title: "Money (stage `hold`)",
        intro: &[
            "Before any work, a call holds its maximum cost. Afterwards it is charged for its actual use. Amounts in \
             `limit` are nano-dollars (10⁻⁹ US dollars).",
            "OpenAI's SDKs raise `APIStatusError` for 402, with `status_code` 402, `type` `insufficient_quota` and \
             the code below, and do not retry. OpenAI itself sends a 429, which SDKs retry in vain and which looks \
             like a rate limit.",
        ],
    },
    Chapter { first: Code::QueueFull, title: "The engine (stages `place` to `decode`)", intro: &[] },
];

/// Checks that the pages equal the generated ones, and that there are no others.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, Failure> {
    let mut broken = Vec::new();
    let all = pages();
    for (name, wanted) in &all {
        let found = std::fs::read_to_string(root.join(name)).unwrap_or_default();
        if found != *wanted {
            let same = found.lines().zip(wanted.lines()).take_while(|(found, wanted)| found == wanted);
            broken.push(format!(
                "{name} is not what the table of codes says, from line {} on: `xtask -- errors` writes it",
                same.count() + 1
            ));
        }
    }
    for folder in [PAGES, admin::PAGES] {
        for entry in std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if !all.contains_key(&name) {
                broken.push(format!("{name} is of no code of its table: remove it"));
            }
        }
    }
    Ok(broken)
}

/// Regenerates the pages.
pub(crate) fn write(root: &Path) -> Result<(), Failure> {
    let failed =
        |name: &str, error: std::io::Error| Failure::new(format!("{name}: {error}"), "make it writable");
    for folder in [PAGES, admin::PAGES] {
        std::fs::create_dir_all(root.join(folder)).map_err(|error| failed(folder, error))?;
    }
    let all = pages();
    for (name, page) in &all {
        std::fs::write(root.join(name), page).map_err(|error| failed(name, error))?;
    }
    println!("wrote {PAGE}, {}, and {} pages below them", admin::PAGE, all.len().saturating_sub(2));
    Ok(())
}

/// All pages, by path.
fn pages() -> BTreeMap<String, String> {
    let of = |code: &Code| (format!("{PAGES}/{}.md", code.name()), ErrorPage::of(*code).markdown(bodies));
    Code::ALL.iter().map(of).chain([(PAGE.to_owned(), page())]).chain(admin::pages()).collect()
}

/// The body of an example in each dialect, indented.
fn bodies(code: Code, message: &str, param: Option<&str>) -> [String; 2] {
    const EXAMPLE: u128 = 0x0192_0000_0000_7000_8000_0000_0000_0001;
    let mut facts = ErrorFacts::new(code, message, RequestId::from_bits(EXAMPLE));
    facts.param = param.map(str::to_owned);
    facts.retry_after_s = matches!(code.status(), 429 | 503).then_some(2);
    // As in the message: 60 of 60 are used, and one more is asked for.
    facts.limit = (code == Code::RequestsPerMinute).then(|| LimitFacts {
        rule: code.name(),
        scope: "key:key_7f3a2b".to_owned(),
        limit: 60,
        observed: 61,
    });
    [Dialect::OpenAi, Dialect::Anthropic].map(|dialect| {
        let body = error_body(dialect, &facts);
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        format!("{value:#}")
    })
}

fn page() -> String {
    let shown = ErrorPage::of(Code::RequestsPerMinute);
    let (message, param) = shown.example().unwrap_or_default();
    let [openai, anthropic] = bodies(shown.code(), message, param);
    let mut page = HEAD.trim_end().replace("{openai}", &openai).replace("{anthropic}", &anthropic);
    for code in Code::ALL {
        if let Some(chapter) = CHAPTERS.iter().find(|chapter| chapter.first == *code) {
            page.push_str(&format!("\n\n## {}", chapter.title));
            chapter.intro.iter().for_each(|paragraph| page.push_str(&format!("\n\n{}", wrapped(paragraph))));
        }
        let more = format!("[More, with an example.](errors/{}.md)", code.name());
        page.push_str(&format!("\n\n### `{code}`\n{}", wrapped(&format!("{} {more}", explained(*code)))));
    }
    page.push('\n');
    page
}

/// The paragraph about a code.
fn explained(code: Code) -> String {
    let status = match code.status() {
        _ if !code.is_public() => String::new(),
        // Answers with these statuses always name the time to retry.
        status @ (429 | 503) => format!("**{status}** with `Retry-After`. "),
        status => format!("**{status}**. "),
    };
    format!("{status}{} {}", code.meaning(), code.way_out()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use headrace_domain::AdminCode;

    use super::*;
    use crate::shell::Place;

    #[test]
    fn every_code_is_explained_once_on_the_page() {
        let root = Place::find().unwrap().root;
        let broken = violations(&root).unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        let page = page();
        for code in Code::ALL {
            assert_eq!(page.matches(&format!("\n### `{code}`\n")).count(), 1, "{code}");
        }
        for chapter in CHAPTERS {
            assert_eq!(page.matches(&format!("\n## {}\n", chapter.title)).count(), 1, "{}", chapter.title);
        }
        assert!(headrace_wire::ERROR_DOCS.ends_with(PAGES));
        // The page that an error body links to exists.
        let link =
            bodies(Code::OutOfMoney, "m", None).map(|body| body.contains("docs/errors/out_of_money.md"));
        assert_eq!(link, [true, true]);
        let operators = admin::page();
        for code in AdminCode::ALL {
            assert_eq!(operators.matches(&format!("\n### `{code}`\n")).count(), 1, "{code}");
        }
    }
}
