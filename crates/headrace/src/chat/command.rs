//! What a line at the prompt means: a command or something to say. Knows no session.

/// The commands, as `/help` shows them.
pub(super) const HELP: &str = "\
/help            this list
/clear           forget the conversation, keep the system message
/model [NAME]    list the models, or ask another one
/system [TEXT]   show or set the system message (`/system -` removes it)
/trace [ID]      where the last answer's time went (or request ID's)
/exit            leave, as Ctrl-D does
//TEXT           say a text that begins with a slash
";

/// A line's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Say(String),
    Help,
    Clear,
    Models,
    Model(String),
    ShowSystem,
    /// Empty text removes it.
    SetSystem(String),
    /// `None`: the last request's.
    Trace(Option<String>),
    Exit,
    /// Its name, with the slash.
    Unknown(String),
}

impl Command {
    /// `None` for a line with nothing on it.
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
            (" hi / there ", Some(Command::Say("hi / there".into()))),
            ("//etc", Some(Command::Say("/etc".into()))),
            ("/help", Some(Command::Help)),
            ("/model", Some(Command::Models)),
            ("/model  a b ", Some(Command::Model("a b".into()))),
            ("/system", Some(Command::ShowSystem)),
            ("/system -", Some(Command::SetSystem(String::new()))),
            ("/system be brief", Some(Command::SetSystem("be brief".into()))),
            ("/trace", Some(Command::Trace(None))),
            ("/trace req_1", Some(Command::Trace(Some("req_1".into())))),
            ("/quit", Some(Command::Exit)),
            ("/clear", Some(Command::Clear)),
            ("/models x", Some(Command::Unknown("/models".into()))),
            ("/", Some(Command::Unknown("/".into()))),
        ];
        for (line, expected) in rows {
            assert_eq!(Command::parse(line), expected, "{line:?}");
        }
        for line in HELP.lines().filter(|line| !line.starts_with("//")) {
            let name = line.split_whitespace().next().unwrap();
            assert!(!matches!(Command::parse(name), Some(Command::Unknown(_) | Command::Say(_))), "{line}");
        }
    }
}
