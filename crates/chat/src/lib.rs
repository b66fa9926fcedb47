//! `headrace chat`: a conversation in the terminal with any server that speaks OpenAI's chat dialect.
//! An ordinary client that reaches the server by HTTP only. On the server's own machine the server lends it a key
//! (`lender`). Must not know the server's crates.

pub mod arguments;
mod command;
mod editor;
mod input;
mod markdown;
mod obey;
mod saved;
mod screen;
mod session;
mod tools;
mod turn;
mod typed;
mod typeset;
mod waterfall;

use std::process::ExitCode;

use crate::arguments::ChatArgs;
use command::ChatCommand;
use input::ChatInput;
use screen::{ChatScreen, OutputClosed};
use session::ChatSession;
use turn::TurnOutcome;
use typed::TypedLine;

/// Exit status after Ctrl-C, as shells report it: 128 plus the number of the signal.
const INTERRUPTED: u8 = 130;

/// Runs the command: one question, or a conversation until its end.
///
/// Returns exit status 0, 1 if an answer failed, or 130 if the single question was cancelled. In a terminal's
/// conversation, the status is 1 only if it could not begin.
pub async fn run(args: ChatArgs) -> ExitCode {
    let mut screen = ChatScreen::of_process();
    let opened = ChatSession::open(&args).await;
    let ended = match opened {
        Ok(mut session) if args.prompt.is_empty() => {
            let history = if args.no_history { None } else { editor::history_file() };
            session.converse(&ChatInput::of_process(history), &mut screen).await
        }
        Ok(mut session) => session.once(&args.prompt.join(" "), &mut screen).await,
        Err(error) => {
            turn::report(
                &mut screen,
                &error,
                headrace_server_access::arguments::given_key(&args.caller.key).is_some(),
            );
            Ok(ExitCode::FAILURE)
        }
    };
    // The reader of standard output is gone, so there is nothing left to report.
    ended.unwrap_or(ExitCode::FAILURE)
}

impl ChatSession {
    async fn once(&mut self, question: &str, screen: &mut ChatScreen) -> Result<ExitCode, OutputClosed> {
        Ok(match self.turn(question, None, screen).await? {
            TurnOutcome::Answered => ExitCode::SUCCESS,
            TurnOutcome::Cancelled => ExitCode::from(INTERRUPTED),
            TurnOutcome::Failed => ExitCode::FAILURE,
        })
    }

    async fn converse(
        &mut self,
        input: &ChatInput,
        screen: &mut ChatScreen,
    ) -> Result<ExitCode, OutputClosed> {
        if input.is_person() {
            let lent = if self.lender.is_some() { " · with a key lent to this machine's owner" } else { "" };
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
                () = turn::exit_requested() => TypedLine::End,
                typed = input.next("> ") => typed,
            };
            let line = match typed {
                TypedLine::Line(line) => line,
                TypedLine::Unreadable(why) => {
                    screen.error(&why);
                    failed = true;
                    continue;
                }
                TypedLine::Interrupted | TypedLine::End => break,
            };
            match ChatCommand::parse(&line) {
                None => {}
                Some(ChatCommand::Exit) => break,
                Some(ChatCommand::Say(text)) => {
                    failed |= self.turn(&text, Some(input), screen).await? == TurnOutcome::Failed;
                }
                Some(ChatCommand::Retry) => failed |= self.retry(input, screen).await? == TurnOutcome::Failed,
                Some(command) => self.obey(command, input, screen).await?,
            }
        }
        Ok(if failed && !input.is_person() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Asks the last question again. The new answer replaces the last one.
    async fn retry(
        &mut self,
        input: &ChatInput,
        screen: &mut ChatScreen,
    ) -> Result<TurnOutcome, OutputClosed> {
        let Some((question, kept)) = self.last_question.take() else {
            screen.note("Nothing was asked yet.");
            return Ok(TurnOutcome::Answered);
        };
        if kept {
            self.log.take_back();
        }
        self.turn(&question, Some(input), screen).await
    }
}
