//! `headrace tokenize`: shows a text's tokens, or the text of tokens. Must not know how they are computed.

use std::process::ExitCode;

use headrace_inspect::{TokenList, Words, draw_tokens, token_list};
use headrace_server::prompt_reports;
use headrace_terminal::output;

use super::{input, which};
use crate::arguments::inspection::TokenizeArgs;

pub(crate) fn run(args: &TokenizeArgs) -> ExitCode {
    match list(args) {
        Ok(list) if args.of.json => super::say_json(&list),
        Ok(list) => {
            output::say_drawn(&draw_tokens(&list));
            ExitCode::SUCCESS
        }
        Err(why) => output::fail(&why),
    }
}

fn list(args: &TokenizeArgs) -> Result<TokenList, String> {
    let text = input::text(&args.text)?;
    let found = which::find(args.of.config.as_deref(), args.of.model.as_deref())?;
    let words = found.words()?;
    if args.ids {
        return of_ids(&words, &text);
    }
    let list = token_list(&words.tokenizer, &text, args.parse_special, args.add_special);
    list.map_err(|error| error.to_string())
}

fn of_ids(words: &Words, text: &str) -> Result<TokenList, String> {
    let numbers = text.split(|c: char| c == ',' || c.is_whitespace() || matches!(c, '[' | ']'));
    let ids: Result<Vec<u32>, String> = numbers
        .filter(|number| !number.is_empty())
        .map(|number| number.parse().map_err(|_| format!("`{number}` is no token id")))
        .collect();
    prompt_reports::of_ids(words, &ids?)
}
