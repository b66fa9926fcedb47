//! A documentation page for each refusal code: what happened, why, what to do, an example, and who can change it. Built
//! from the table of refusals and from `causes`. Must not know files or terminals.

mod admin;
mod admin_causes;
mod causes;
mod who;

use headrace_domain::{Code, ErrorKind};

use causes::cause;

pub use admin::AdminErrorPage;
pub use who::Who;

/// The page of a code.
#[derive(Debug, Clone, Copy)]
pub struct ErrorPage {
    code: Code,
}

impl ErrorPage {
    /// The page of this code.
    pub const fn of(code: Code) -> Self {
        Self { code }
    }

    /// The page of the code with this name.
    pub fn named(name: &str) -> Option<Self> {
        Code::ALL.iter().find(|code| code.name() == name).map(|code| Self::of(*code))
    }

    /// The code.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Who can change it.
    pub const fn who(&self) -> Who {
        cause(self.code).who
    }

    /// The usual cause.
    pub const fn why(&self) -> &'static str {
        cause(self.code).why
    }

    /// A sample message, and the parameter that it names. `None` if callers never receive this code.
    pub fn example(&self) -> Option<(&'static str, Option<&'static str>)> {
        let cause = cause(self.code);
        self.code.is_public().then_some((cause.message, cause.param))
    }

    /// Whether the same request may pass later.
    pub const fn again(&self) -> &'static str {
        match self.code.kind() {
            ErrorKind::RateLimit | ErrorKind::Overloaded => {
                "Yes, after `Retry-After`, if the answer has one. The official SDKs retry automatically."
            }
            ErrorKind::Billing => "Only if the answer has a `Retry-After`.",
            ErrorKind::Timeout => "Yes, once the cause is gone.",
            ErrorKind::Internal => "Perhaps: the fault is in the server or an upstream.",
            ErrorKind::InvalidRequest
            | ErrorKind::Authentication
            | ErrorKind::Permission
            | ErrorKind::NotFound
            | ErrorKind::RequestTooLarge
            | ErrorKind::ContentPolicy => "No: it would be refused again.",
        }
    }

    /// Renders the page as Markdown. `bodies` writes an example body in each dialect, as (OpenAI's, Anthropic's).
    pub fn markdown(&self, bodies: impl Fn(Code, &str, Option<&str>) -> [String; 2]) -> String {
        let code = self.code;
        let mut page = format!("# `{}`\n\n", code.name());
        page += &match code.is_public() {
            true => format!("Status **{}** · stage `{}`\n\n", code.status(), code.stage().name()),
            false => format!("Callers never receive this name · stage `{}`\n\n", code.stage().name()),
        };
        page += &format!("**What happened.** {}\n\n**Why.** {}\n\n", code.meaning(), self.why());
        if !code.way_out().is_empty() {
            page += &format!("**What to do.** {}\n\n", code.way_out());
        }
        page += &format!("**Who can change it.** {}\n", self.who().words());
        if let Some((message, param)) = self.example() {
            page += &format!("\n**Does the same request pass later?** {}\n", self.again());
            let [openai, anthropic] = bodies(code, message, param);
            page += &format!(
                "\nIn OpenAI's format:\n\n```json\n{openai}\n```\n\nIn Anthropic's:\n\n```json\n{anthropic}\n```\n"
            );
        }
        page += "\nTo see the whole call: `headrace trace --explain REQUEST_ID`. All codes: [errors.md](../errors.md).\n";
        page
    }

    /// Renders the page as text for a terminal of `columns` columns.
    pub fn text(&self, columns: usize) -> String {
        let code = self.code;
        let mut page = crate::render::Page::new(columns);
        page.line(&match code.is_public() {
            true => format!("{} · {} · stage {}", code.name(), code.status(), code.stage().name()),
            false => format!("{} · never sent to callers · stage {}", code.name(), code.stage().name()),
        });
        page.gap();
        page.paragraph("what happened: ", code.meaning());
        page.paragraph("why: ", self.why());
        if !code.way_out().is_empty() {
            page.paragraph("what to do: ", code.way_out());
        }
        page.paragraph("who can change it: ", self.who().words());
        if let Some((message, _)) = self.example() {
            page.paragraph("again later: ", self.again());
            page.paragraph("a message: ", message);
        }
        page.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_that_says_something() {
        for code in Code::ALL {
            let page = ErrorPage::of(*code);
            assert!(page.why().ends_with('.') && page.why().len() > 10, "{code}");
            assert_eq!(page.example().is_some(), code.is_public());
            if let Some((message, _)) = page.example() {
                assert!(message.len() > 12 && !message.ends_with(' '), "{code}: {message}");
            }
            assert!(page.text(80).lines().all(|line| headrace_trace::cells(line) <= 80), "{code}");
            assert_eq!(ErrorPage::named(code.name()).map(|page| page.code()), Some(*code));
        }
    }
}
