//! The page that `headrace --help` prints, with the commands grouped by purpose. Must not know what a command does.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Command;

use headrace_terminal::output;

/// The groups, in the order in which a new user needs them.
pub(crate) const GROUPS: [(&str, &[&str]); 4] = [
    ("Start", &["up", "serve", "config", "models", "doctor", "completions", "man"]),
    ("Ask", &["chat", "batches", "bench", "ping", "render", "tokenize"]),
    (
        "Look",
        &[
            "now",
            "status",
            "trace",
            "requests",
            "receipt",
            "datasets",
            "errors",
            "usage",
            "statement",
            "margin",
            "cache",
            "shadow",
            "audit",
        ],
    ),
    (
        "Manage",
        &[
            "keys",
            "orgs",
            "projects",
            "tiers",
            "users",
            "service-accounts",
            "groups",
            "scim",
            "credit",
            "lots",
            "free-tiers",
            "refund",
            "budget",
            "budgets",
            "webhooks",
            "invoices",
            "ledger",
            "forget",
            "backup",
            "move",
            "secrets",
            "operators",
            "upstreams",
            "routes",
            "reload",
        ],
    ),
];

const EXAMPLES: &str = "\
Examples:
  headrace up                               start with the built-in demo model
  headrace up --model ~/models/Qwen3-0.6B   serve a Hugging Face directory
  headrace up --upstream gpu=vllm:http://10.0.0.7:8000   serve vLLM models
  headrace serve --config headrace.toml     start from a configuration file
  headrace chat \"What is a KV cache?\"       ask a model on this machine
  headrace trace --last                     where the last call's time went
  headrace trace --last --explain           the same in words, with suggestions
  headrace requests --outcome refused       find calls
  headrace usage --by project --interval day   usage of each project, by day
  headrace bench --users 8                  measure a server with eight users
  headrace config check                     show settings and their faults
  headrace keys create --name laptop        create a key for a caller
  headrace credit grant 25                  add money to organisation `default`
  headrace ledger verify                    check the ledger

`headrace COMMAND --help` shows details. Exit codes: 0 done, 1 failed,
2 wrong usage or configuration, 130 interrupted.";

/// Sets a help page on which the subcommands are grouped.
pub(crate) fn grouped(command: Command) -> Command {
    let mut page = String::from("{about}\n\n{usage-heading} {usage}\n");
    for (title, names) in GROUPS {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n{title}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "  {name:<11}  {about}");
        }
    }
    page.push_str("\nOptions:\n{options}{after-help}");
    command.help_template(page).next_line_help(false).after_help(EXAMPLES)
}

/// Removes empty environment variables from every option of every command, so that an empty variable counts as unset.
pub(crate) fn without_empty_variables(command: Command) -> Command {
    let is_empty = |arg: &clap::Arg| {
        arg.get_env()
            .and_then(std::env::var_os)
            .is_some_and(|value| value.to_string_lossy().trim().is_empty())
    };
    let unset = |arg: clap::Arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg };
    command.mut_args(unset).mut_subcommands(without_empty_variables)
}

/// Prints the requested help, or the error in the command line in the format of this program's errors. Returns the exit
/// code.
pub(crate) fn answer(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        let text = error.render().to_string();
        output::note(text.replacen("error: ", "headrace: ", 1).trim_end());
    } else {
        // Ignore a closed standard output.
        let _ = error.print();
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::ProgramArgs;

    #[test]
    fn each_command_is_in_one_group_and_no_line_wraps_at_80_columns() {
        let command = ProgramArgs::command();
        let mut grouped_names: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped_names.sort_unstable();
        let mut names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(grouped_names, names);
        let page = grouped(command).term_width(80).render_help().to_string();
        for line in page.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for part in
            ["Start:\n  up ", "Ask:\n  chat ", "Look:\n  now ", "Manage:\n  keys ", "Options:", "Examples:"]
        {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }
}
