//! A documentation page for each error code of operators: what happened, why, what to do, an example. Must not know
//! files or terminals, or how a response is encoded.

use headrace_domain::AdminCode;

use super::admin_causes::{AdminCause, cause};

/// The page of a code.
#[derive(Debug, Clone, Copy)]
pub struct AdminErrorPage {
    code: AdminCode,
}

impl AdminErrorPage {
    /// The page of this code.
    pub const fn of(code: AdminCode) -> Self {
        Self { code }
    }

    /// The page of the code with this name.
    pub fn named(name: &str) -> Option<Self> {
        AdminCode::named(name).map(Self::of)
    }

    /// The code.
    pub const fn code(&self) -> AdminCode {
        self.code
    }

    /// Who can change it, in words.
    pub const fn who(&self) -> &'static str {
        self.cause().who.words()
    }

    /// The usual cause.
    pub const fn why(&self) -> &'static str {
        self.cause().why
    }

    /// A sample message. `None` if the code occurs only on the control socket.
    pub const fn message(&self) -> Option<&'static str> {
        if self.code.statuses().is_empty() { None } else { Some(self.cause().message) }
    }

    /// Whether the same request may pass later.
    pub const fn again(&self) -> &'static str {
        match self.code.status() {
            429 => "Yes, after `Retry-After`.",
            503 => "Yes, once the cause is gone.",
            500 => "Perhaps: the fault is in the server.",
            401 => "No: sign in first.",
            _ => "No: it would be refused again.",
        }
    }

    /// The code's statuses, such as `400, 422`. Empty if it occurs only on the control socket.
    pub fn statuses(&self) -> String {
        self.code.statuses().iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Renders the page as Markdown. `body` writes an example body from the code, the message, the remedy and the
    /// field.
    pub fn markdown(&self, body: impl Fn(AdminCode, &str, &str, Option<&str>) -> String) -> String {
        let (code, AdminCause { message, remedy, field, .. }) = (self.code, self.cause());
        let mut page = format!("# `{code}`\n\n");
        page += &match self.message() {
            Some(_) => format!("Status **{}** · the admin API and the command line\n\n", self.statuses()),
            None => "Only on the command line\n\n".to_owned(),
        };
        page += &format!("**What happened.** {}\n\n**Why.** {}\n\n", code.meaning(), self.why());
        page += &format!(
            "**What to do.** {}\n\n**Who can change it.** {}\n\n**Does the same request pass later?** {}\n\n",
            code.way_out(),
            self.who(),
            self.again()
        );
        if self.message().is_some() {
            page += &format!(
                "The answer of the admin API:\n\n```json\n{}\n```\n\n",
                body(code, message, remedy, *field)
            );
        }
        page += "All codes of the admin API: [admin-errors.md](../admin-errors.md). Codes of calls: [errors.md](../errors.md).\n";
        page
    }

    /// Renders the page as text for a terminal of `columns` columns.
    pub fn text(&self, columns: usize) -> String {
        let code = self.code;
        let mut page = crate::render::Page::new(columns);
        page.line(&match self.message() {
            Some(_) => format!("{code} · {} · operators", self.statuses()),
            None => format!("{code} · the command line · operators"),
        });
        page.gap();
        page.paragraph("what happened: ", code.meaning());
        page.paragraph("why: ", self.why());
        page.paragraph("what to do: ", code.way_out());
        page.paragraph("who can change it: ", self.who());
        page.paragraph("again later: ", self.again());
        if let Some(message) = self.message() {
            page.paragraph("a message: ", message);
        }
        page.into_text()
    }

    const fn cause(&self) -> &'static AdminCause {
        cause(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_operators_has_a_page_that_says_something() {
        for code in AdminCode::ALL {
            let page = AdminErrorPage::of(*code);
            assert!(page.why().ends_with('.') && page.why().len() > 10, "{code}");
            assert!(page.message().is_none_or(|message| message.len() > 8), "{code}");
            assert!(page.text(80).lines().all(|line| headrace_trace::cells(line) <= 80), "{code}");
            assert_eq!(AdminErrorPage::named(code.name()).map(|page| page.code()), Some(*code));
            let markdown = page.markdown(|code, message, _, _| format!("{code}: {message}"));
            assert_eq!(markdown.contains("```json"), !code.statuses().is_empty(), "{code}");
            assert!(markdown.starts_with(&format!("# `{code}`\n")), "{code}");
        }
    }
}
