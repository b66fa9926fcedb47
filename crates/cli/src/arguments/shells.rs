//! Arguments of the commands that write shell completions and manual pages. Must not know what a command does.

use std::path::PathBuf;

use clap::Args;

/// `headrace completions`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace completions bash > headrace.bash      then, in ~/.bashrc: source .../headrace.bash\n  headrace completions zsh > _headrace          in a directory of $fpath\n  headrace completions fish > headrace.fish      in ~/.config/fish/completions"
)]
pub(crate) struct CompletionsArgs {
    /// Shell
    pub(crate) shell: clap_complete::Shell,
}

/// `headrace man`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  headrace man man1      then: man ./man1/headrace-trace.1; for all users, in /usr/local/share/man/man1"
)]
pub(crate) struct ManArgs {
    /// Directory for the pages, created if missing
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}
