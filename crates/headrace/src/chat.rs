//! `headrace chat`: a conversation in the terminal with any server that speaks OpenAI's chat dialect.
//! A client like any other: it knows nothing of the server's rooms and reaches it by HTTP alone. On the server's own machine it
//! is lent a key (`house`).

mod command;
mod editor;
mod house;
mod input;
mod markdown;
mod obey;
mod saved;
mod screen;
mod tools;
mod turn;
mod typeset;
mod waterfall;

use std::path::PathBuf;
use std::process::ExitCode;

use headrace_client::{
    ChatRequest, Client, ClientConfig, ClientError, ConversationLog, HeadraceOptions, ModelInfo,
    StreamOptions,
};
use secrecy::SecretString;

use crate::ca::read_ca;
use crate::cli::At;
use command::Command;
use house::House;
use input::{Input, Typed};
use screen::{OutputClosed, Screen};
use turn::Turn;

/// Talk to a model in the terminal.
///
/// Without a prompt it reads one question per line from the terminal or a pipe; in a terminal lines are edited, completed and
/// remembered. The answer goes to standard output, everything else to standard error. Ctrl-C cancels an answer; at the prompt it
/// takes back the line, and leaves the second time, as Ctrl-D does.
#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// Server to talk to [default: the one of --data-dir where no key is given, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", env = "HEADRACE_BASE_URL")]
    url: Option<String>,
    /// API key (other users of this machine see it on a command line: prefer the variable). On the server's own machine none is
    /// needed by whoever may read its data directory
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret)]
    key: Option<SecretString>,
    /// Data directory of a server on this machine, which lends a key for some hours [default: ./headrace-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Trust this authority (PEM), or this self-signed certificate, instead of this machine's list
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Model to ask [default: the first one that the server lists]
    #[arg(long, value_name = "NAME", env = "HEADRACE_MODEL")]
    model: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// 0 (always the likeliest token) to 2 [default: the model's]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Most tokens of an answer [default: the server's]
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// The same seed gives the same answer again
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Neither read nor write what was typed in the terminal in earlier chats ($XDG_STATE_HOME/headrace/chat-history)
    #[arg(long)]
    no_history: bool,
    /// Question to answer once; without it a conversation begins
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.trim().into())
}

/// Exit status after Ctrl-C, as shells count it: 128 and the signal's number.
const INTERRUPTED: u8 = 130;
/// Where a server of ours listens unless it is told otherwise.
const USUAL_URL: &str = "http://127.0.0.1:8080";

/// Runs the command: one question, or a conversation until its end.
///
/// Exit status 0; 1 if an answer failed (in a terminal's conversation: only if it could not begin); 130 if the one
/// question was cancelled.
pub(crate) async fn run(args: ChatArgs) -> ExitCode {
    let mut screen = Screen::of_process();
    let opened = Session::open(&args).await;
    let ended = match opened {
        Ok(mut session) if args.prompt.is_empty() => {
            let history = if args.no_history { None } else { editor::history_file() };
            session.converse(&Input::of_process(history), &mut screen).await
        }
        Ok(mut session) => session.once(&args.prompt.join(" "), &mut screen).await,
        Err(error) => {
            turn::report(&mut screen, &error, args.key.is_some());
            Ok(ExitCode::FAILURE)
        }
    };
    // Whoever read the output has gone: there is nobody left to tell.
    ended.unwrap_or(ExitCode::FAILURE)
}

struct Session {
    client: Client,
    /// How the client was made, but for a lent key.
    config: ClientConfig,
    /// Who lent the key, where none was given.
    house: Option<House>,
    has_key: bool,
    log: ConversationLog,
    model: String,
    /// What stays the same from request to request.
    template: ChatRequest,
    /// The request that `/trace` shows.
    last_request: Option<String>,
    /// The question that `/retry` asks again, and whether its turn is in the conversation.
    last_question: Option<(String, bool)>,
}

impl Session {
    async fn open(args: &ChatArgs) -> Result<Self, ClientError> {
        let ca_pem = args.ca.as_deref().map(read_ca).transpose().map_err(ClientError::Config)?;
        let house = match &args.key {
            Some(_) => None,
            None => lender(args).await,
        };
        let url = house.as_ref().map(|house| house.url.clone()).or_else(|| args.url.clone());
        let key = args.key.clone().or_else(|| house.as_ref().map(|house| house.key.clone()));
        let url = url.unwrap_or_else(|| USUAL_URL.to_owned());
        let config = ClientConfig { key, ca_pem, ..ClientConfig::new(url) };
        let client = Client::new(config.clone())?;
        let model = match &args.model {
            Some(model) => model.clone(),
            None => first_model(&client).await?,
        };
        let mut log = ConversationLog::new();
        log.set_system(args.system.clone().unwrap_or_default());
        let template = ChatRequest {
            max_tokens: args.max_tokens,
            temperature: args.temperature,
            seed: args.seed,
            stream: true,
            stream_options: Some(StreamOptions { include_usage: true }),
            headrace: Some(HeadraceOptions { explain: true }),
            ..ChatRequest::default()
        };
        let has_key = config.key.is_some();
        let (last_request, last_question) = (None, None);
        Ok(Self { client, config, house, has_key, log, model, template, last_request, last_question })
    }

    async fn once(&mut self, question: &str, screen: &mut Screen) -> Result<ExitCode, OutputClosed> {
        Ok(match self.turn(question, None, screen).await? {
            Turn::Answered => ExitCode::SUCCESS,
            Turn::Cancelled => ExitCode::from(INTERRUPTED),
            Turn::Failed => ExitCode::FAILURE,
        })
    }

    async fn converse(&mut self, input: &Input, screen: &mut Screen) -> Result<ExitCode, OutputClosed> {
        if input.is_person() {
            let lent = if self.house.is_some() { " · with a key lent to this machine's owner" } else { "" };
            let base = self.client.base();
            screen.note(&format!("{} at {base}{lent} · /help shows the commands, Ctrl-D leaves", self.model));
            if let Ok(models) = self.client.models().await {
                input.know(models.into_iter().map(|model| model.id).collect());
            }
        }
        let mut failed = false;
        loop {
            let typed = tokio::select! {
                biased;
                () = turn::told_to_leave() => Typed::End,
                typed = input.next("> ") => typed,
            };
            let line = match typed {
                Typed::Line(line) => line,
                Typed::Unreadable(why) => {
                    screen.error(&why);
                    failed = true;
                    continue;
                }
                Typed::Interrupted | Typed::End => break,
            };
            match Command::parse(&line) {
                None => {}
                Some(Command::Exit) => break,
                Some(Command::Say(text)) => {
                    failed |= self.turn(&text, Some(input), screen).await? == Turn::Failed;
                }
                Some(Command::Retry) => failed |= self.retry(input, screen).await? == Turn::Failed,
                Some(command) => self.obey(command, input, screen).await?,
            }
        }
        Ok(if failed && !input.is_person() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Asks the last question again, in the place of what came of it.
    async fn retry(&mut self, input: &Input, screen: &mut Screen) -> Result<Turn, OutputClosed> {
        let Some((question, kept)) = self.last_question.take() else {
            screen.note("Nothing was asked yet.");
            return Ok(Turn::Answered);
        };
        if kept {
            self.log.take_back();
        }
        self.turn(&question, Some(input), screen).await
    }

    /// Takes a key of now where the one that was lent has ended. Whether there is one.
    async fn renew(&mut self) -> bool {
        let Some(house) = &self.house else { return false };
        let Some(house) = house.again().await else { return false };
        let config = ClientConfig { key: Some(house.key.clone()), ..self.config.clone() };
        let Ok(client) = Client::new(config) else { return false };
        (self.client, self.house) = (client, Some(house));
        true
    }
}

/// The server of the data directory, if it is the one that is meant.
async fn lender(args: &ChatArgs) -> Option<House> {
    let at = At { data_dir: args.data_dir.clone(), config: None, json: false };
    House::of(crate::commands::data_dir(&at).ok()?, args.url.clone()).await
}

async fn first_model(client: &Client) -> Result<String, ClientError> {
    let models = client.models().await?;
    let first = models.into_iter().find(ModelInfo::takes_conversations).map(|model| model.id);
    first.ok_or_else(|| {
        ClientError::Config(
            "the server lists no model that takes conversations for this key; name one by --model".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_the_key_is_not_shown() {
        #[derive(Debug, clap::Parser)]
        struct Cli {
            #[command(flatten)]
            chat: ChatArgs,
        }
        let line =
            ["chat", "--key", "sk-hidden", "--temperature", "0", "--seed", "7", "What", "is", "prefill?"];
        let cli: Cli = clap::Parser::try_parse_from(line).unwrap();
        assert_eq!(cli.chat.prompt.join(" "), "What is prefill?");
        assert_eq!((cli.chat.temperature, cli.chat.seed), (Some(0.0), Some(7)));
        assert_eq!(cli.chat.url, None);
        assert!(!format!("{cli:?}").contains("hidden"));
    }
}
