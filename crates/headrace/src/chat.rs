//! `headrace chat`: a conversation in the terminal with any server that speaks OpenAI's chat dialect.
//! A client like any other: it knows nothing of the server's rooms and reaches it by HTTP alone.

mod command;
mod input;
mod screen;
mod waterfall;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use headrace_client::{
    Answer, ChatEvent, ChatRequest, ChatStream, Client, ClientConfig, ClientError, ConversationLog,
    HeadraceOptions, StreamOptions,
};
use secrecy::SecretString;

use crate::ca::read_ca;
use command::{Command, HELP};
use input::Lines;
use screen::{OutputClosed, Screen};

/// Talk to a model in the terminal.
///
/// Without a prompt it reads one question per line from the terminal or a pipe. The answer goes to standard output,
/// everything else to standard error. Ctrl-C cancels an answer; at the prompt, Ctrl-C or Ctrl-D leaves.
#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// Server to talk to
    #[arg(long, value_name = "URL", env = "HEADRACE_BASE_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// API key (other users of this machine see it on a command line: prefer the variable)
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret)]
    key: Option<SecretString>,
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
    /// Question to answer once; without it a conversation begins
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.trim().into())
}

/// Exit status after Ctrl-C, as shells count it: 128 and the signal's number.
const INTERRUPTED: u8 = 130;
/// Traces are written out of band: how often and how patiently one that is not there yet is asked for.
const TRACE_TRIES: u32 = 4;
const TRACE_WAIT: Duration = Duration::from_millis(150);

/// Runs the command: one question, or a conversation until its end.
///
/// Exit status 0; 1 if an answer failed (in a terminal's conversation: only if it could not begin); 130 if the one
/// question was cancelled.
pub(crate) async fn run(args: ChatArgs) -> ExitCode {
    let mut screen = Screen::of_process();
    let opened = Session::open(&args).await;
    let ended = match opened {
        Ok(mut session) if args.prompt.is_empty() => session.converse(&mut screen).await,
        Ok(mut session) => session.once(&args.prompt.join(" "), &mut screen).await,
        Err(error) => {
            report(&mut screen, &error, args.key.is_some());
            Ok(ExitCode::FAILURE)
        }
    };
    // Whoever read the output has gone: there is nobody left to tell.
    ended.unwrap_or(ExitCode::FAILURE)
}

struct Session {
    client: Client,
    has_key: bool,
    log: ConversationLog,
    model: String,
    /// What stays the same from request to request.
    template: ChatRequest,
    /// The request that `/trace` shows.
    last_request: Option<String>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Answered,
    Cancelled,
    Failed,
}

impl Session {
    async fn open(args: &ChatArgs) -> Result<Self, ClientError> {
        let ca_pem = args.ca.as_deref().map(read_ca).transpose().map_err(ClientError::Config)?;
        let client =
            Client::new(ClientConfig { key: args.key.clone(), ca_pem, ..ClientConfig::new(&args.url) })?;
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
        Ok(Self { client, has_key: args.key.is_some(), log, model, template, last_request: None })
    }

    async fn once(&mut self, question: &str, screen: &mut Screen) -> Result<ExitCode, OutputClosed> {
        Ok(match self.turn(question, screen).await? {
            Turn::Answered => ExitCode::SUCCESS,
            Turn::Cancelled => ExitCode::from(INTERRUPTED),
            Turn::Failed => ExitCode::FAILURE,
        })
    }

    async fn converse(&mut self, screen: &mut Screen) -> Result<ExitCode, OutputClosed> {
        let lines = Lines::of_stdin();
        if lines.is_terminal() {
            let about =
                format!("{} at {} · /help shows the commands, Ctrl-D leaves", self.model, self.client.base());
            screen.note(&about);
        }
        let mut failed = false;
        loop {
            if lines.is_terminal() {
                screen.prompt();
            }
            let line = tokio::select! {
                biased;
                () = interrupted() => None,
                line = lines.next() => line,
            };
            let line = match line {
                Some(Ok(line)) => line,
                Some(Err(error)) => {
                    screen.error(&error.to_string());
                    failed = true;
                    continue;
                }
                None => break,
            };
            match Command::parse(&line) {
                None => {}
                Some(Command::Exit) => break,
                Some(Command::Say(text)) => failed |= self.turn(&text, screen).await? == Turn::Failed,
                Some(command) => self.obey(command, screen).await?,
            }
        }
        if lines.is_terminal() {
            screen.end_line();
            return Ok(ExitCode::SUCCESS);
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    async fn obey(&mut self, command: Command, screen: &mut Screen) -> Result<(), OutputClosed> {
        match command {
            Command::Help => screen.text(HELP)?,
            Command::Clear => {
                self.log.clear();
                screen.note("The conversation is empty; the system message stays.");
            }
            Command::ShowSystem => match self.log.system() {
                Some(text) => screen.note(text),
                None => screen.note("There is no system message."),
            },
            Command::SetSystem(text) => {
                self.log.set_system(text);
                screen.note("The system message holds from the next question on.");
            }
            Command::Models => self.show_models(screen).await?,
            Command::Model(name) => self.change_model(name, screen).await,
            Command::Trace(id) => self.show_trace(id, screen).await?,
            Command::Unknown(name) => {
                screen.error(&format!(
                    "there is no command `{name}`; /help shows them, `//` begins a text with a slash"
                ));
            }
            Command::Say(_) | Command::Exit => {}
        }
        Ok(())
    }

    /// Asks, shows the answer as it comes, and closes the turn in the log.
    async fn turn(&mut self, question: &str, screen: &mut Screen) -> Result<Turn, OutputClosed> {
        self.log.ask(question);
        let request =
            ChatRequest { model: self.model.clone(), messages: self.log.messages(), ..self.template.clone() };
        let interrupt = interrupted();
        tokio::pin!(interrupt);
        // Dropping either future below drops the connection, by which the server sees the cancellation.
        let opened = tokio::select! {
            biased;
            () = &mut interrupt => None,
            opened = self.client.chat(&request) => Some(opened),
        };
        let mut stream = match opened {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => return Ok(self.failed(&error, screen)),
            None => {
                self.log.cancel("");
                screen.note("cancelled");
                return Ok(Turn::Cancelled);
            }
        };
        self.last_request.clone_from(&stream.answer().request_id);
        let shown = show(&mut stream, interrupt, screen).await?;
        screen.end_answer()?;
        match shown {
            Shown::Whole => Ok(self.answered(stream.into_answer(), screen)),
            Shown::Cancelled => {
                let answer = stream.into_answer();
                let kept =
                    if self.log.cancel(answer.text.as_str()) { "" } else { " · the question is forgotten" };
                screen.note(&format!("cancelled{kept} · {}", summary(&answer)));
                Ok(Turn::Cancelled)
            }
            Shown::Failed(error) => Ok(self.failed(&error, screen)),
        }
    }

    fn answered(&mut self, answer: Answer, screen: &mut Screen) -> Turn {
        for call in &answer.tool_calls {
            screen.note(&format!("the model calls {}({})", call.name, call.arguments));
        }
        screen.note(&summary(&answer));
        if answer.text.is_empty() {
            // An empty message says nothing, and some templates refuse one.
            self.log.fail();
        } else {
            self.log.answer(answer.text);
        }
        Turn::Answered
    }

    fn failed(&mut self, error: &ClientError, screen: &mut Screen) -> Turn {
        self.log.fail();
        if let Some(id) = error.request_id() {
            self.last_request = Some(id.to_owned());
        }
        report(screen, error, self.has_key);
        Turn::Failed
    }

    async fn show_models(&self, screen: &mut Screen) -> Result<(), OutputClosed> {
        match self.client.models().await {
            Ok(models) => {
                for model in models {
                    let mark = if model.id == self.model { '*' } else { ' ' };
                    screen.text(&format!("{mark} {}\n", model.id))?;
                }
            }
            Err(error) => report(screen, &error, self.has_key),
        }
        Ok(())
    }

    /// Changes the model also to one that is not listed: an alias need not be.
    async fn change_model(&mut self, name: String, screen: &mut Screen) {
        let listed = match self.client.models().await {
            Ok(models) => models.iter().any(|model| model.id == name),
            Err(error) => return report(screen, &error, self.has_key),
        };
        let doubt = if listed { "" } else { " (the server does not list it; /model lists those it has)" };
        screen.note(&format!("{name} answers from now on{doubt}"));
        self.model = name;
    }

    async fn show_trace(&self, id: Option<String>, screen: &mut Screen) -> Result<(), OutputClosed> {
        let Some(id) = id.or_else(|| self.last_request.clone()) else {
            screen.note("Nothing was asked yet.");
            return Ok(());
        };
        match self.trace(&id).await {
            Ok(trace) => {
                screen.text(&waterfall::draw(&trace))?;
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

/// How the showing of an answer ended.
enum Shown {
    Whole,
    Cancelled,
    Failed(ClientError),
}

async fn show(
    stream: &mut ChatStream,
    mut interrupt: std::pin::Pin<&mut impl Future<Output = ()>>,
    screen: &mut Screen,
) -> Result<Shown, OutputClosed> {
    loop {
        let event = tokio::select! {
            biased;
            () = &mut interrupt => return Ok(Shown::Cancelled),
            event = stream.next() => event,
        };
        match event {
            Ok(Some(ChatEvent::Text(piece))) => screen.answer(&piece)?,
            Ok(Some(ChatEvent::Reasoning(piece))) => screen.reasoning(&piece)?,
            Ok(Some(ChatEvent::ToolCall(_) | ChatEvent::Finish(_))) => {}
            Ok(None) => return Ok(Shown::Whole),
            Err(error) => return Ok(Shown::Failed(error)),
        }
    }
}

async fn first_model(client: &Client) -> Result<String, ClientError> {
    let models = client.models().await?;
    let first = models.into_iter().find(|model| model.answers_at("chat/completions")).map(|model| model.id);
    first.ok_or_else(|| {
        ClientError::Config(
            "the server lists no model that takes conversations for this key; name one by --model".to_owned(),
        )
    })
}

/// Resolves at the next Ctrl-C; never where signals cannot be caught.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn report(screen: &mut Screen, error: &ClientError, has_key: bool) {
    screen.error(&error.to_string());
    if let Some(advice) = advice(error, has_key) {
        screen.note(advice);
    }
}

/// What to do about it here, where there is something.
fn advice(error: &ClientError, has_key: bool) -> Option<&'static str> {
    match error {
        ClientError::Api(error) if error.status == Some(401) && !has_key => Some(
            "No key was given: set HEADRACE_API_KEY (the first start of `headrace up` shows the first key).",
        ),
        ClientError::Connection(_) => Some("Is it running? `headrace up` starts one; --url names another."),
        ClientError::Api(error) if error.code == "context_length_exceeded" => Some(
            "The conversation fills the model's context: /clear begins anew and keeps the system message.",
        ),
        _ => None,
    }
}

/// One line about an answer: what is not known is left out, never shown as zero.
fn summary(answer: &Answer) -> String {
    let mut parts = Vec::new();
    match answer.finish_reason.as_deref() {
        Some("length") => parts.push("ended at its length limit".to_owned()),
        Some("content_filter") => parts.push("stopped by a content rule".to_owned()),
        _ => {}
    }
    parts.extend(answer.timing.first_token.map(|ttft| format!("TTFT {}", duration(ttft))));
    parts.extend(answer.tokens_per_second().map(|rate| format!("{rate:.0} tokens/s")));
    if let Some(usage) = &answer.usage {
        parts.push(format!("prompt {} ({} cached)", usage.prompt_tokens, usage.cached_tokens()));
        parts.push(format!("output {}", usage.completion_tokens));
    }
    parts.extend(answer.explain.as_ref().and_then(|explain| explain.cost).map(|cost| cost.to_string()));
    if answer.timing.retries > 0 {
        parts.push(format!("try {}", answer.timing.retries.saturating_add(1)));
    }
    parts.extend(answer.request_id.clone());
    parts.join(" · ")
}

fn duration(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    match millis {
        0.0..10.0 => format!("{millis:.1} ms"),
        10.0..1000.0 => format!("{millis:.0} ms"),
        _ => format!("{:.2} s", millis / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use headrace_client::{ApiError, Explain, Timing, UsageBody};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_full_conversation_and_a_missing_key_have_a_way_out() {
        let refused = |status, code: &str| {
            let error = ApiError { status: Some(status), code: code.into(), ..ApiError::default() };
            ClientError::Api(Box::new(error))
        };
        let full = advice(&refused(400, "context_length_exceeded"), true).unwrap();
        assert!(full.contains("/clear"), "{full}");
        assert!(advice(&refused(401, "missing_api_key"), false).unwrap().contains("HEADRACE_API_KEY"));
        assert_eq!(advice(&refused(401, "invalid_api_key"), true), None);
    }

    #[test]
    fn the_line_after_an_answer() {
        let usage: UsageBody = serde_json::from_value(json!({"prompt_tokens": 24, "completion_tokens": 56,
            "prompt_tokens_details": {"cached_tokens": 16}}))
        .unwrap();
        let answer = Answer {
            finish_reason: Some("stop".into()),
            usage: Some(usage),
            explain: Some(Explain::from_value(json!({"cost": {"charged_nano_dollars": 9_400},
                "stages": [{"stage": "decode", "start_us": 2_340, "duration_us": 55_000}]}))),
            request_id: Some("req_1".into()),
            timing: Timing {
                first_token: Some(Duration::from_micros(2_340)),
                last_token: Some(Duration::from_micros(57_340)),
                ..Timing::default()
            },
            ..Answer::default()
        };
        assert_eq!(
            summary(&answer),
            "TTFT 2.3 ms · 1000 tokens/s · prompt 24 (16 cached) · output 56 · $0.0000094 · req_1"
        );
        let cut = Answer { finish_reason: Some("length".into()), ..Answer::default() };
        assert_eq!(summary(&cut), "ended at its length limit");
        assert_eq!(
            (duration(Duration::from_millis(412)), duration(Duration::from_millis(1_500))),
            ("412 ms".into(), "1.50 s".into())
        );
    }

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
        assert_eq!(cli.chat.url, "http://127.0.0.1:8080");
        assert!(!format!("{cli:?}").contains("hidden"));
    }
}
