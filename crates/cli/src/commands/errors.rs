//! `headrace errors`: explains error codes. Needs no server.

use std::process::ExitCode;

use headrace_domain::{AdminCode, Code};
use headrace_explain::{AdminErrorPage, ErrorPage};
use headrace_terminal::output;
use serde_json::{Value, json};

use crate::arguments::ErrorsArgs;

/// Maximum edit distance of a suggested code from an unknown one.
const ALIKE: usize = 3;

/// Explains a code, or lists all of them.
pub(crate) fn run(args: &ErrorsArgs) -> ExitCode {
    let (width, _) = output::terminal();
    match args.code.as_deref() {
        None if args.at.json => {
            let calls = Code::ALL.iter().map(|code| as_json(&ErrorPage::of(*code)));
            let operators = AdminCode::ALL.iter().map(|code| of_operators(&AdminErrorPage::of(*code)));
            output::say(&format!("{:#}\n", Value::from(calls.chain(operators).collect::<Vec<_>>())));
        }
        None => output::say(&list()),
        Some(name) => match named(name.trim_matches('`')) {
            (None, None) => return output::refuse(&unknown(name)),
            (call, operators) if args.at.json => {
                // One object if only one table has the name, which is usual. Otherwise a list of both.
                let call = call.as_ref().map(as_json);
                let mut all: Vec<_> = call.into_iter().chain(operators.as_ref().map(of_operators)).collect();
                let told = if all.len() == 1 { all.swap_remove(0) } else { Value::from(all) };
                output::say(&format!("{told:#}\n"));
            }
            (call, operators) => {
                let call = call.map(|page| page.text(width));
                let pages: Vec<_> = call.into_iter().chain(operators.map(|page| page.text(width))).collect();
                output::say(&pages.join("\n"));
            }
        },
    }
    ExitCode::SUCCESS
}

/// Looks a name up in the codes for clients and in those for operators.
fn named(name: &str) -> (Option<ErrorPage>, Option<AdminErrorPage>) {
    (ErrorPage::named(name), AdminErrorPage::named(name))
}

fn of_operators(page: &AdminErrorPage) -> Value {
    let code = page.code();
    json!({
        "code": code.name(),
        "status": code.statuses().first(),
        "stage": null,
        "what": code.meaning(),
        "why": page.why(),
        "what_to_do": code.way_out(),
        "who": page.who(),
        "again": page.again(),
        "message": page.message(),
        "doc": format!("docs/admin-errors/{}.md", code.name()),
    })
}

fn as_json(page: &ErrorPage) -> Value {
    let code = page.code();
    json!({
        "code": code.name(),
        "status": code.is_public().then(|| code.status()),
        "stage": code.stage().name(),
        "what": code.meaning(),
        "why": page.why(),
        "what_to_do": code.way_out(),
        "who": page.who().words(),
        "again": page.again(),
        "message": page.example().map(|(message, _)| message),
        "doc": format!("docs/errors/{}.md", code.name()),
    })
}

fn list() -> String {
    let rows = Code::ALL.iter().filter(|code| code.is_public()).map(|code| {
        let (name, stage) = (code.name().to_owned(), code.stage().name().to_owned());
        vec![name, code.status().to_string(), stage, code.meaning().to_owned()]
    });
    let operators = AdminCode::ALL.iter().map(|code| {
        vec![code.name().to_owned(), AdminErrorPage::of(*code).statuses(), code.meaning().to_owned()]
    });
    format!(
        "{}\nWhat operators are refused with:\n{}",
        output::table(&["code", "status", "stage", "what happened"], rows.collect()),
        output::table(&["code", "status", "what happened"], operators.collect())
    )
}

fn unknown(name: &str) -> String {
    let names = Code::ALL.iter().map(|code| code.name());
    let names = names.chain(AdminCode::ALL.iter().map(|code| code.name()));
    let nearest = names.map(|known| (strsim::levenshtein(name, known), known)).min();
    match nearest.filter(|(distance, _)| *distance <= ALIKE) {
        Some((_, known)) => format!("there is no code `{name}`: did you mean `{known}`?"),
        None => format!("there is no code `{name}`: `headrace errors` lists them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_led_to_one_that_is() {
        assert!(unknown("token_per_minute").ends_with("did you mean `tokens_per_minute`?"));
        assert!(unknown("nonsense at all").contains("lists them"));
        assert!(unknown("last_ownr").ends_with("did you mean `last_owner`?"));
        assert!(list().lines().count() > Code::ALL.len() / 2 + AdminCode::ALL.len());
        for code in AdminCode::ALL {
            assert!(named(code.name()).1.is_some(), "{code}");
        }
        assert!(matches!(named("unknown_org"), (Some(_), Some(_))) && matches!(named("no"), (None, None)));
    }
}
