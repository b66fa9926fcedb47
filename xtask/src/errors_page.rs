//! The page that explains errors, `docs/errors.md`: written from the table of refusals, so that every name that an answer or
//! a trace can carry is an anchor on it. Must not know who refuses.

use std::path::Path;

use headrace_domain::Code;

use crate::shell::{Failure, read};

pub(crate) const PAGE: &str = "docs/errors.md";

/// What stands before the first chapter.
const HEAD: &str = include_str!("errors_page/head.md");
/// Where a line of a paragraph is broken, in characters.
const WIDTH: usize = 120;

/// A chapter begins with a code of the table and ends where the next one begins.
struct Chapter {
    first: Code,
    title: &'static str,
    /// Paragraphs before its codes.
    intro: &'static [&'static str],
}

const CHAPTERS: &[Chapter] = &[
    Chapter { first: Code::NotFound, title: "The connection (stage `connect`)", intro: &[] },
    Chapter {
        first: Code::MissingApiKey,
        title: "Who calls (stage `authenticate`)",
        intro: &[
            "Answers to bad keys do not tell why a key is bad; the trace (`rule`) does, for the operator.",
        ],
    },
    Chapter {
        first: Code::RequestTooLarge,
        title: "The body (stage `receive`)",
        intro: &[
            "A body is read only when it is known whose it is. The connection of a body that was left unread is \
                  closed (HTTP/1.1), or its stream is reset (HTTP/2).",
        ],
    },
    Chapter {
        first: Code::InvalidJson,
        title: "The request (stage `parse`)",
        intro: &[
            "`param` names the field at fault. A parameter that could change the answer is honoured or refused by \
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
            "What a call may take is estimated from its size and from what it asks for (`n`, `max_tokens`, \
                  log-probabilities, `echo`, `stop`), and held until the last byte of its answer has gone.",
        ],
    },
    Chapter {
        first: Code::RequestsPerMinute,
        title: "Limits (stage `hold`)",
        intro: &[
            "Requests and places in flight are taken when the key is known, tokens once they are counted; each \
                  time over key → project → organisation (→ model, with the tokens), all together or none. A request \
                  that is let in stays counted, whatever refuses it later; its place, and tokens that were not used, \
                  are given back. `limit.scope` says whose limit it was. A call that can never fit is a 400 without \
                  `Retry-After`.",
        ],
    },
    Chapter {
        first: Code::OutOfMoney,
        title: "Money (stage `hold`)",
        intro: &[
            "A call holds the most that it can cost before any work, and pays what it used afterwards. Amounts in \
             `limit` are nano-dollars (10⁻⁹ US dollars).",
            "OpenAI's SDKs raise `APIStatusError` for 402, with `status_code` 402, `type` `insufficient_quota` and \
             the code below, and do not try again; OpenAI's own 429 for this would be tried again in vain, and looks \
             like a rate limit.",
        ],
    },
    Chapter { first: Code::QueueFull, title: "The engine (stages `place` to `decode`)", intro: &[] },
];

/// Whether the page is the one that the table writes.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, Failure> {
    let (found, wanted) = (read(&root.join(PAGE))?, page());
    if found == wanted {
        return Ok(Vec::new());
    }
    let line = found.lines().zip(wanted.lines()).take_while(|(found, wanted)| found == wanted).count() + 1;
    Ok(vec![format!(
        "{PAGE} is not what crates/domain/src/code/table.rs says, from line {line} on: `xtask -- errors` writes it"
    )])
}

/// Writes the page anew.
pub(crate) fn write(root: &Path) -> Result<(), Failure> {
    std::fs::write(root.join(PAGE), page())
        .map_err(|error| Failure::new(format!("{PAGE}: {error}"), "make it writable"))?;
    println!("wrote {PAGE}");
    Ok(())
}

fn page() -> String {
    let mut page = HEAD.trim_end().to_owned();
    for code in Code::ALL {
        if let Some(chapter) = CHAPTERS.iter().find(|chapter| chapter.first == *code) {
            page.push_str(&format!("\n\n## {}", chapter.title));
            chapter.intro.iter().for_each(|paragraph| page.push_str(&format!("\n\n{}", wrapped(paragraph))));
        }
        page.push_str(&format!("\n\n### `{code}`\n{}", wrapped(&explained(*code))));
    }
    page.push('\n');
    page
}

/// The paragraph of a code.
fn explained(code: Code) -> String {
    let status = match code.status() {
        _ if !code.is_told() => String::new(),
        // Everybody who is told to come back is told when.
        status @ (429 | 503) => format!("**{status}** with `Retry-After`. "),
        status => format!("**{status}**. "),
    };
    format!("{status}{} {}", code.meaning(), code.way_out()).trim_end().to_owned()
}

/// A paragraph in lines of at most [`WIDTH`] characters.
fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
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
        assert!(headrace_wire::ERROR_DOCS.ends_with(PAGE));
    }
}
