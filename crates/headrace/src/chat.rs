//! `headrace chat`: a conversation in the terminal with any server that speaks OpenAI's chat dialect.
//! An ordinary client that reaches the server by HTTP only. On the server's own machine the server lends it a key
//! (`house`). Must not know the server's crates.

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

use crate::cli::chat::ChatArgs;
use command::Command;
use input::Input;
use screen::{OutputClosed, Screen};
use session::Session;
use turn::Turn;
use typed::Typed;

/// Exit status after Ctrl-C, as shells report it: 128 plus the number of the signal.
const INTERRUPTED: u8 = 130;

/// Runs the command: one question, or a conversation until its end.
///
/// Returns exit status 0, 1 if an answer failed, or 130 if the single question was cancelled. In a terminal's
/// conversation, the status is 1 only if it could not begin.
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
            turn::report(&mut screen, &error, crate::caller::given(&args.caller.key).is_some());
            Ok(ExitCode::FAILURE)
        }
    };
    // The reader of standard output is gone, so there is nothing left to report.
    ended.unwrap_or(ExitCode::FAILURE)
}

impl Session {
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

    /// Asks the last question again. The new answer replaces the last one.
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
}
