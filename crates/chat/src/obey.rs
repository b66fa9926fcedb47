//! Executes the commands of a chat. Must not know how a line was typed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use headrace_client::{ClientError, ModelInfo};
use headrace_domain::{Clock, SystemClock};

use super::command::{ChatCommand, HELP, KEYS};
use super::input::ChatInput;
use super::screen::{ChatScreen, OutputClosed};
use super::session::ChatSession;
use super::turn::report;
use super::{saved, tools, waterfall};

/// Number and interval of attempts to fetch a trace. Traces are stored after the call ends.
const TRACE_TRIES: u32 = 4;
const TRACE_WAIT: Duration = Duration::from_millis(150);
/// Maximum number of model names in an error about an unknown name.
const NAMES_LISTED: usize = 8;

impl ChatSession {
    pub(super) async fn obey(
        &mut self,
        command: ChatCommand,
        input: &ChatInput,
        screen: &mut ChatScreen,
    ) -> Result<(), OutputClosed> {
        match command {
            ChatCommand::Help => {
                screen.text(HELP)?;
                if input.is_person() {
                    screen.text(KEYS)?;
                }
            }
            ChatCommand::Clear => {
                self.log.clear();
                self.last_question = None;
                screen.note("The conversation is empty; the system message stays.");
            }
            ChatCommand::ShowSystem => match self.log.system() {
                Some(text) => screen.note(text),
                None => screen.note("There is no system message."),
            },
            ChatCommand::SetSystem(text) => {
                self.log.set_system(text);
                screen.note("The system message holds from the next question on.");
            }
            ChatCommand::Models => self.show_models(input, screen).await?,
            ChatCommand::Model(name) => self.change_model(name, screen).await,
            ChatCommand::ShowTools => match self.template.tools.as_slice() {
                [] => screen.note("No tool is offered; /tools FILE offers those of a JSON file."),
                offered => screen.text(&tools::described(offered))?,
            },
            ChatCommand::Tools(file) => match tools::read(Path::new(&file)) {
                Ok(read) => {
                    screen.note(&format!("{} offered from the next question on", count(read.len(), "tool")));
                    self.template.tools = read;
                }
                Err(why) => screen.error(&why),
            },
            ChatCommand::NoTools => {
                self.template.tools.clear();
                screen.note("No tool is offered any more.");
            }
            ChatCommand::Save(file) => self.save(file, screen),
            ChatCommand::Trace(id) => self.show_trace(id, screen).await?,
            ChatCommand::Unknown(name) => {
                screen.error(&format!(
                    "there is no command `{name}`; /help shows them, `//` begins a text with a slash"
                ));
            }
            ChatCommand::Say(_) | ChatCommand::Exit | ChatCommand::Retry => {}
        }
        Ok(())
    }

    fn save(&self, file: Option<String>, screen: &mut ChatScreen) {
        if self.log.turns() == 0 {
            return screen.note("There is nothing to save yet.");
        }
        let now = SystemClock::new().now();
        let utc = || format!("{} {}", headrace_trace::utc_date(now), headrace_trace::utc_time(now));
        let path = file.map_or_else(|| saved::unnamed(&utc()), PathBuf::from);
        match saved::save(&path, &self.model, &self.log.messages()) {
            Ok(()) => screen.note(&format!(
                "{} saved in {}, readable for you alone",
                count(self.log.turns(), "turn"),
                path.display()
            )),
            Err(why) => screen.error(&why),
        }
    }

    async fn show_models(&self, input: &ChatInput, screen: &mut ChatScreen) -> Result<(), OutputClosed> {
        match self.client.models().await {
            Ok(models) => {
                for model in &models {
                    let mark = if model.id == self.model { '*' } else { ' ' };
                    let other = if model.takes_conversations() { "" } else { "  (takes no conversations)" };
                    screen.text(&format!("{mark} {}{other}\n", model.id))?;
                }
                input.know(models.into_iter().map(|model| model.id).collect());
            }
            Err(error) => report(screen, &error, self.has_key),
        }
        Ok(())
    }

    /// Changes the model to one that the server serves. Also accepts a name that is not listed, because aliases may be
    /// unlisted.
    async fn change_model(&mut self, name: String, screen: &mut ChatScreen) {
        let models = match self.client.models().await {
            Ok(models) => models,
            Err(error) => return report(screen, &error, self.has_key),
        };
        let found = match models.iter().find(|model| model.id == name) {
            Some(listed) => Some(listed.clone()),
            None => match self.client.model(&name).await {
                Ok(found) => found,
                Err(error) => return report(screen, &error, self.has_key),
            },
        };
        match found {
            None => screen.error(&format!(
                "the server serves no model `{name}` to this key; {}",
                served(&models, &name)
            )),
            Some(model) if !model.takes_conversations() => {
                screen.error(&format!("`{name}` takes no conversations; {}", served(&models, &name)));
            }
            Some(_) => {
                screen.note(&format!("{name} answers from now on"));
                self.model = name;
            }
        }
    }

    async fn show_trace(&self, id: Option<String>, screen: &mut ChatScreen) -> Result<(), OutputClosed> {
        let Some(id) = id.or_else(|| self.last_request.clone()) else {
            screen.note("Nothing was asked yet.");
            return Ok(());
        };
        match self.trace(&id).await {
            Ok(trace) => {
                let own = self.last_half.as_ref().filter(|_| self.last_request.as_ref() == Some(&id));
                let drawn = match own {
                    Some(half) => waterfall::draw_joined(&trace, half, screen.columns()),
                    None => waterfall::draw(&trace, screen.columns()),
                };
                screen.text(&drawn)?;
                screen.note(&format!("On the server's machine: headrace trace {id}"));
            }
            Err(error) => report(screen, &error, self.has_key),
        }
        Ok(())
    }

    async fn trace(&self, id: &str) -> Result<serde_json::Value, ClientError> {
        for _ in 1..TRACE_TRIES {
            match self.client.request_trace(id).await {
                Err(ClientError::Api(error)) if error.status == Some(404) => {
                    tokio::time::sleep(TRACE_WAIT).await
                }
                other => return other,
            }
        }
        self.client.request_trace(id).await
    }
}

/// Lists the served models, with the names most similar to `name` first.
fn served(models: &[ModelInfo], name: &str) -> String {
    let alike =
        |id: &str| id.chars().zip(name.chars()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let mut ids: Vec<_> =
        models.iter().filter(|model| model.takes_conversations()).map(|model| model.id.as_str()).collect();
    ids.sort_by_key(|id| std::cmp::Reverse(alike(id)));
    match (ids.len(), ids.get(..NAMES_LISTED)) {
        (0, _) => "it lists none".to_owned(),
        (all, Some(some)) if all > NAMES_LISTED => {
            format!("it has {} and {} more", some.join(", "), all - NAMES_LISTED)
        }
        _ => format!("it has {}", ids.join(", ")),
    }
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_is_told_with_the_nearest_first() {
        let model = |id: &str, endpoints: Option<&[&str]>| ModelInfo {
            id: id.to_owned(),
            context_window: None,
            endpoints: endpoints.map(|paths| paths.iter().map(|path| (*path).to_owned()).collect()),
        };
        let models = [model("a", None), model("qwen3", None), model("encoder", Some(&["embeddings"]))];
        assert_eq!(served(&models, "Qwen4"), "it has qwen3, a");
        assert_eq!(served(&[], "x"), "it lists none");
        let many: Vec<_> = (0..10).map(|n| model(&format!("m{n}"), None)).collect();
        assert!(
            served(&many, "m9").starts_with("it has m9, ") && served(&many, "m9").ends_with("and 2 more")
        );
        assert_eq!((count(1, "turn"), count(2, "tool")), ("1 turn".into(), "2 tools".into()));
    }
}
