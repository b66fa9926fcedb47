//! `headrace errors`: what the codes of refusals mean. Asks no server.

use std::process::ExitCode;

use headrace_domain::Code;
use headrace_explain::ErrorPage;
use serde_json::{Value, json};

use crate::cli::ErrorsArgs;
use crate::config::layers::distance;
use crate::output;

/// How alike a name must be to be named instead of one that is none: so many letters of each may differ.
const ALIKE: usize = 3;

/// Explains a code, or lists all of them.
pub(crate) fn run(args: &ErrorsArgs) -> ExitCode {
    let (width, _) = output::terminal();
    match args.code.as_deref() {
        None if args.at.json => {
            let all: Vec<Value> = Code::ALL.iter().map(|code| as_json(&ErrorPage::of(*code))).collect();
            output::say(&format!("{:#}\n", Value::from(all)));
        }
        None => output::say(&list()),
        Some(name) => match ErrorPage::named(name.trim_matches('`')) {
            Some(page) if args.at.json => output::say(&format!("{:#}\n", as_json(&page))),
            Some(page) => output::say(&page.text(width)),
            None => return output::refuse(&unknown(name)),
        },
    }
    ExitCode::SUCCESS
}

fn as_json(page: &ErrorPage) -> Value {
    let code = page.code();
    json!({
        "code": code.name(),
        "status": code.is_told().then(|| code.status()),
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
    let rows = Code::ALL.iter().filter(|code| code.is_told()).map(|code| {
        let (name, stage) = (code.name().to_owned(), code.stage().name().to_owned());
        vec![name, code.status().to_string(), stage, code.meaning().to_owned()]
    });
    output::table(&["code", "status", "stage", "what happened"], rows.collect())
}

fn unknown(name: &str) -> String {
    let names = Code::ALL.iter().map(|code| code.name());
    let nearest = names.map(|known| (distance(name, known), known)).min();
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
        assert!(list().lines().count() > 90);
    }
}
