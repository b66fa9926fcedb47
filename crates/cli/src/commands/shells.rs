//! `headrace completions` and `headrace man`: generates shell completions and manual pages from the command line's
//! definition. Must not know what a command does.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use headrace_terminal::output;

use crate::arguments::ProgramArgs;
use crate::arguments::shells::{CompletionsArgs, ManArgs};

/// The program's name.
const NAME: &str = "headrace";

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> ExitCode {
    output::say(&script(args.shell));
    ExitCode::SUCCESS
}

/// Writes a manual page for each command.
pub(crate) fn man(args: &ManArgs) -> ExitCode {
    match pages(&args.dir) {
        Ok(count) => {
            output::say(&format!("{count} pages in {}\n", args.dir.display()));
            ExitCode::SUCCESS
        }
        Err(error) => output::fail(&format!("{}: {error}", args.dir.display())),
    }
}

fn script(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut ProgramArgs::command(), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes the pages and returns their number.
fn pages(dir: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(dir)?;
    // The long version describes this machine, which does not belong in a manual page.
    let mut command = ProgramArgs::command().long_version(None::<&'static str>);
    command.build();
    let mut pages = vec![command];
    let mut written = 0;
    while let Some(command) = pages.pop() {
        let below =
            command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set());
        pages.extend(below.cloned());
        clap_mangen::Man::new(command).generate_to(dir)?;
        written += 1;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    /// Every command as a list of words, such as `keys create`.
    fn commands() -> Vec<Vec<String>> {
        let mut command = ProgramArgs::command();
        command.build();
        let mut found = vec![(Vec::new(), command)];
        let mut all = Vec::new();
        while let Some((words, command)) = found.pop() {
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                let mut words: Vec<String> = words.clone();
                words.push(below.get_name().to_owned());
                found.push((words, below.clone()));
            }
            all.push(words);
        }
        all
    }

    #[test]
    fn every_command_has_a_page_and_every_shell_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("man1");
        assert_eq!(pages(&at).unwrap(), commands().len());
        for words in commands() {
            let name = [&["headrace".to_owned()], words.as_slice()].concat().join("-");
            let page = std::fs::read_to_string(at.join(format!("{name}.1"))).unwrap();
            for part in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
                assert!(page.contains(part), "{name}: {part}");
            }
            assert!(!page.contains("instruction sets"), "{name} tells of this machine");
        }
        let keys = std::fs::read_to_string(at.join("headrace-keys-create.1")).unwrap();
        assert!(keys.replace('\\', "").contains("--requests-per-minute"), "{keys}");
        for shell in clap_complete::Shell::value_variants() {
            let script = script(*shell);
            for words in commands() {
                let missing = words.iter().find(|word| !script.contains(word.as_str()));
                assert_eq!(missing, None, "{shell}: {words:?}");
            }
        }
    }
}
