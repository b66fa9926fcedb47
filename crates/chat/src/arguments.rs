//! Arguments of `headrace chat`. Must not know what a conversation is.

use headrace_server_access::arguments::CallerArgs;

/// Arguments of `headrace chat`.
#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub(crate) caller: CallerArgs,
    /// Model to ask [default: the first one that the server lists]
    #[arg(long, value_name = "NAME", env = "HEADRACE_MODEL")]
    pub(crate) model: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Temperature, 0 (always the likeliest token) to 2 [default: the model's]
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Maximum tokens of an answer [default: the server's]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// Seed. The same seed gives the same answer
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Neither read nor write the input history of the terminal ($XDG_STATE_HOME/headrace/chat-history)
    #[arg(long)]
    pub(crate) no_history: bool,
    /// Question to answer once. Without a question, a conversation begins
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_the_key_is_not_shown() {
        #[derive(Debug, clap::Parser)]
        struct ChatProgram {
            #[command(flatten)]
            chat: ChatArgs,
        }
        let line =
            ["chat", "--key", "sk-hidden", "--temperature", "0", "--seed", "7", "What", "is", "prefill?"];
        let cli: ChatProgram = clap::Parser::try_parse_from(line).unwrap();
        assert_eq!(cli.chat.prompt.join(" "), "What is prefill?");
        assert_eq!((cli.chat.temperature, cli.chat.seed), (Some(0.0), Some(7)));
        assert_eq!(cli.chat.caller.url, None);
        assert!(!format!("{cli:?}").contains("hidden"));
    }
}
