//! Parses a line at the prompt: a command, or a message to the model. Must not know sessions.

/// The commands, as `/help` shows them.
pub(super) const HELP: &str = "\
/help            this list
/clear           forget the conversation, keep the system message
/model [NAME]    list the models, or ask another one
/retry           ask the last question again
/save [FILE]     write the conversation to a new file: .json, or Markdown
/system [TEXT]   show or set the system message (`/system -` removes it)
/tools [FILE]    show the tools, or offer those of a JSON file (`/tools -`
                 takes them back); you are asked for the results of calls
/trace [ID]      where the last answer's time went (or request ID's)
/exit            leave, as Ctrl-D does
//TEXT           say a text that begins with a slash
";

/// Help on keys, for a person at a terminal.
pub(super) const KEYS: &str = "\
A line that ends in \\ goes on in the next, and so it does after Alt-Enter;
what is pasted stays one question. Ctrl-R looks through what you said before,
Tab completes. Ctrl-C takes back the line, or ends the answer.
";

/// Command names, for completion.
pub(super) const NAMES: [&str; 9] =
    ["/clear", "/exit", "/help", "/model", "/retry", "/save", "/system", "/tools", "/trace"];

/// A parsed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChatCommand {
    Say(String),
    Help,
    Clear,
    Models,
    Model(String),
    ShowSystem,
    /// Sets the system message. An empty text removes it.
    SetSystem(String),
    ShowTools,
    /// Offers the tools of this file.
    Tools(String),
    NoTools,
    /// Saves the conversation to this file. `None` for a generated file name.
    Save(Option<String>),
    Retry,
    /// Shows the trace of this request. `None` for the last request.
    Trace(Option<String>),
    Exit,
    /// The unknown command's name, with the slash.
    Unknown(String),
}

impl ChatCommand {
    /// Parses a line. `None` if it is blank.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let Some(rest) = line.strip_prefix('/') else {
            return (!line.is_empty()).then(|| Self::Say(line.to_owned()));
        };
        if rest.starts_with('/') {
            return Some(Self::Say(rest.to_owned()));
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = argument.trim();
        Some(match (name, argument) {
            ("help" | "?", _) => Self::Help,
            ("clear", _) => Self::Clear,
            ("model" | "models", "") => Self::Models,
            ("model", name) => Self::Model(name.to_owned()),
            ("system", "") => Self::ShowSystem,
            ("system", "-") => Self::SetSystem(String::new()),
            ("system", text) => Self::SetSystem(text.to_owned()),
            ("tools", "") => Self::ShowTools,
            ("tools", "-") => Self::NoTools,
            ("tools", file) => Self::Tools(file.to_owned()),
            ("save", "") => Self::Save(None),
            ("save", file) => Self::Save(Some(file.to_owned())),
            ("retry", _) => Self::Retry,
            ("trace", "") => Self::Trace(None),
            ("trace", id) => Self::Trace(Some(id.to_owned())),
            ("exit" | "quit", _) => Self::Exit,
            _ => Self::Unknown(format!("/{name}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let rows = [
            ("  ", None),
            (" hi / there ", Some(ChatCommand::Say("hi / there".into()))),
            ("//etc", Some(ChatCommand::Say("/etc".into()))),
            ("/help", Some(ChatCommand::Help)),
            ("/model", Some(ChatCommand::Models)),
            ("/model  a b ", Some(ChatCommand::Model("a b".into()))),
            ("/system", Some(ChatCommand::ShowSystem)),
            ("/system -", Some(ChatCommand::SetSystem(String::new()))),
            ("/system be brief", Some(ChatCommand::SetSystem("be brief".into()))),
            ("/trace", Some(ChatCommand::Trace(None))),
            ("/trace req_1", Some(ChatCommand::Trace(Some("req_1".into())))),
            ("/tools", Some(ChatCommand::ShowTools)),
            ("/tools -", Some(ChatCommand::NoTools)),
            ("/tools a b.json", Some(ChatCommand::Tools("a b.json".into()))),
            ("/save", Some(ChatCommand::Save(None))),
            ("/save x.md", Some(ChatCommand::Save(Some("x.md".into())))),
            ("/retry", Some(ChatCommand::Retry)),
            ("several\n/lines", Some(ChatCommand::Say("several\n/lines".into()))),
            ("/system two\nlines", Some(ChatCommand::SetSystem("two\nlines".into()))),
            ("/quit", Some(ChatCommand::Exit)),
            ("/clear", Some(ChatCommand::Clear)),
            ("/models x", Some(ChatCommand::Unknown("/models".into()))),
            ("/", Some(ChatCommand::Unknown("/".into()))),
        ];
        for (line, expected) in rows {
            assert_eq!(ChatCommand::parse(line), expected, "{line:?}");
        }
        for name in NAMES {
            assert!(HELP.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}");
        }
        for line in HELP.lines().filter(|line| line.starts_with('/') && !line.starts_with("//")) {
            let name = line.split_whitespace().next().unwrap();
            assert!(
                !matches!(ChatCommand::parse(name), Some(ChatCommand::Unknown(_) | ChatCommand::Say(_))),
                "{line}"
            );
        }
    }
}
