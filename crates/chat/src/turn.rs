//! One turn of a chat: a question, its streamed answer, and the summary after it. Must not know the source of lines.

use std::time::Duration;

use headrace_client::{Answer, ChatEvent, ChatRequest, ChatStream, ClientError, ConnectTimes};
use headrace_terminal::interruption::interrupted;

use super::input::ChatInput;
use super::screen::{ChatScreen, OutputClosed};
use super::session::ChatSession;
use super::typed::TypedLine;
use super::waterfall::ClientHalf;

/// Maximum number of answers with tool calls in one turn.
const MAX_ROUNDS: usize = 16;

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    Answered,
    Cancelled,
    Failed,
}

/// How one answer of a turn ended.
enum AnswerOutcome {
    Whole(Box<Answer>),
    Over(TurnOutcome),
}

impl ChatSession {
    /// Asks the question, shows the answer as it arrives, and closes the turn in the log. Asks `input` for results of
    /// tool calls. Without `input`, tool calls end the turn.
    pub(super) async fn turn(
        &mut self,
        question: &str,
        input: Option<&ChatInput>,
        screen: &mut ChatScreen,
    ) -> Result<TurnOutcome, OutputClosed> {
        let before = self.log.turns();
        self.log.ask(question);
        let ended = self.rounds(input, screen).await?;
        self.last_question = Some((question.to_owned(), self.log.turns() > before));
        Ok(ended)
    }

    async fn rounds(
        &mut self,
        input: Option<&ChatInput>,
        screen: &mut ChatScreen,
    ) -> Result<TurnOutcome, OutputClosed> {
        for _ in 0..MAX_ROUNDS {
            let answer = match self.round(screen).await? {
                AnswerOutcome::Whole(answer) => answer,
                AnswerOutcome::Over(turn) => return Ok(turn),
            };
            match input {
                Some(input) if !answer.tool_calls.is_empty() && !self.template.tools.is_empty() => {
                    if !self.results(&answer, input, screen).await {
                        self.log.fail();
                        screen.note("without a result there is no answer: the question is forgotten");
                        return Ok(TurnOutcome::Cancelled);
                    }
                }
                _ => {
                    if answer.text.is_empty() {
                        // Some templates refuse an empty message.
                        self.log.fail();
                    } else {
                        self.log.answer(answer.text);
                    }
                    return Ok(TurnOutcome::Answered);
                }
            }
        }
        self.log.fail();
        screen.error(&format!("{MAX_ROUNDS} answers called tools, one after the other: this turn ends here"));
        Ok(TurnOutcome::Failed)
    }

    /// Asks for the result of each tool call of an answer. Returns whether every call has a result.
    async fn results(&mut self, answer: &Answer, input: &ChatInput, screen: &mut ChatScreen) -> bool {
        self.log.called(answer.text.as_str(), &answer.tool_calls);
        for call in &answer.tool_calls {
            let prompt = format!("result of {}> ", super::screen::line_of(&call.name));
            let typed = tokio::select! {
                biased;
                () = interrupted() => return false,
                typed = input.answer(&prompt) => typed,
            };
            match typed {
                TypedLine::Line(text) if !text.trim().is_empty() => self.log.result(call.id.as_str(), text),
                TypedLine::Unreadable(why) => {
                    screen.error(&why);
                    return false;
                }
                TypedLine::Line(_) | TypedLine::Interrupted | TypedLine::End => return false,
            }
        }
        true
    }

    /// Requests one answer, and shows it as it arrives.
    async fn round(&mut self, screen: &mut ChatScreen) -> Result<AnswerOutcome, OutputClosed> {
        let request =
            ChatRequest { model: self.model.clone(), messages: self.log.messages(), ..self.template.clone() };
        let interrupt = interrupted();
        tokio::pin!(interrupt);
        // Dropping either future below drops the connection, which cancels the call on the server.
        let opened = tokio::select! {
            biased;
            () = &mut interrupt => None,
            opened = self.ask(&request) => Some(opened),
        };
        let mut stream = match opened {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => return Ok(AnswerOutcome::Over(self.failed(&error, screen))),
            None => {
                self.log.cancel("");
                screen.note("cancelled");
                return Ok(AnswerOutcome::Over(TurnOutcome::Cancelled));
            }
        };
        self.last_request.clone_from(&stream.answer().request_id);
        self.last_half = None;
        screen.begin_answer();
        let shown = show(&mut stream, interrupt, screen).await?;
        screen.end_answer()?;
        self.last_half = Some(ClientHalf::of(stream.answer()));
        match shown {
            ShowOutcome::Whole => {
                let answer = stream.into_answer();
                for call in &answer.tool_calls {
                    screen.note(&format!("the model calls {}({})", call.name, call.arguments));
                }
                screen.note(&summary(&answer));
                Ok(AnswerOutcome::Whole(Box::new(answer)))
            }
            ShowOutcome::Cancelled => {
                let answer = stream.into_answer();
                let kept =
                    if self.log.cancel(answer.text.as_str()) { "" } else { " · the question is forgotten" };
                screen.note(&format!("cancelled{kept} · {}", summary(&answer)));
                Ok(AnswerOutcome::Over(TurnOutcome::Cancelled))
            }
            ShowOutcome::Failed(error) => Ok(AnswerOutcome::Over(self.failed(&error, screen))),
        }
    }

    /// Sends a request. Retries once with a new key if a lent key has expired.
    async fn ask(&mut self, request: &ChatRequest) -> Result<ChatStream, ClientError> {
        match self.client.chat(request).await {
            Err(ClientError::Api(error)) if error.status == Some(401) && self.renew().await => {
                self.client.chat(request).await
            }
            asked => asked,
        }
    }

    fn failed(&mut self, error: &ClientError, screen: &mut ChatScreen) -> TurnOutcome {
        self.log.fail();
        if let Some(id) = error.request_id() {
            self.last_request = Some(id.to_owned());
        }
        report(screen, error, self.has_key);
        TurnOutcome::Failed
    }
}

/// How the display of an answer ended.
enum ShowOutcome {
    Whole,
    Cancelled,
    Failed(ClientError),
}

async fn show(
    stream: &mut ChatStream,
    mut interrupt: std::pin::Pin<&mut impl Future<Output = ()>>,
    screen: &mut ChatScreen,
) -> Result<ShowOutcome, OutputClosed> {
    loop {
        let event = tokio::select! {
            biased;
            () = &mut interrupt => return Ok(ShowOutcome::Cancelled),
            event = stream.next() => event,
        };
        match event {
            Ok(Some(ChatEvent::Text(piece))) => screen.answer(&piece)?,
            Ok(Some(ChatEvent::Reasoning(piece))) => screen.reasoning(&piece)?,
            Ok(Some(ChatEvent::ToolCall(_) | ChatEvent::Finish(_))) => {}
            Ok(None) => return Ok(ShowOutcome::Whole),
            Err(error) => return Ok(ShowOutcome::Failed(error)),
        }
    }
}

/// Resolves on SIGINT, SIGTERM or SIGHUP, so that the terminal can be restored before the process ends.
pub(super) async fn exit_requested() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut hangup)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return interrupted().await;
    };
    tokio::select! {
        () = interrupted() => {}
        _ = term.recv() => {}
        _ = hangup.recv() => {}
    }
}

pub(super) fn report(screen: &mut ChatScreen, error: &ClientError, has_key: bool) {
    screen.error(&error.to_string());
    if let Some(advice) = advice(error, has_key) {
        screen.note(advice);
    }
}

/// Returns advice on an error, if there is any.
fn advice(error: &ClientError, has_key: bool) -> Option<&'static str> {
    match error {
        ClientError::Api(error) if error.code == "context_length_exceeded" => Some(
            "The conversation fills the model's context: /clear begins anew and keeps the system message.",
        ),
        _ => headrace_server_access::advice(error, has_key),
    }
}

/// Summarizes an answer in one line. Unknown figures are left out, never shown as zero.
fn summary(answer: &Answer) -> String {
    let mut parts = Vec::new();
    match answer.finish_reason.as_deref() {
        Some("length") => parts.push("ended at its length limit".to_owned()),
        Some("content_filter") => parts.push("stopped by a content rule".to_owned()),
        _ => {}
    }
    parts.extend(answer.timing.first_token.map(|ttft| format!("TTFT {}", duration(ttft))));
    parts.extend(answer.timing.connect.as_ref().and_then(new_connection));
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

/// Describes the share of a new connection in the time to the first token. `None` below one millisecond. An open
/// connection would have saved this time.
fn new_connection(connect: &ConnectTimes) -> Option<String> {
    const WORTH_TELLING: Duration = Duration::from_millis(1);
    let steps = [("DNS", connect.dns), ("TCP", Some(connect.tcp)), ("TLS", connect.tls)];
    let steps: Vec<_> =
        steps.iter().filter_map(|(name, time)| Some(format!("{name} {}", duration((*time)?)))).collect();
    let told = || format!("{} of it a new connection ({})", duration(connect.total()), steps.join(", "));
    (connect.total() >= WORTH_TELLING).then(told)
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
        let unknown = advice(&refused(401, "invalid_api_key"), true).unwrap();
        assert!(unknown.contains("--key") && unknown.contains("--data-dir"), "{unknown}");
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
        let ms = |millis| Some(Duration::from_millis(millis));
        let connect = Some(ConnectTimes { dns: ms(3), tcp: Duration::from_millis(12), tls: ms(26) });
        let new = Answer {
            timing: Timing { first_token: ms(60), connect, ..Timing::default() },
            ..Answer::default()
        };
        assert_eq!(
            summary(&new),
            "TTFT 60 ms · 41 ms of it a new connection (DNS 3.0 ms, TCP 12 ms, TLS 26 ms)"
        );
        let near = ConnectTimes { tcp: Duration::from_micros(90), ..ConnectTimes::default() };
        assert_eq!(new_connection(&near), None, "too little to matter");
        let cut = Answer { finish_reason: Some("length".into()), ..Answer::default() };
        assert_eq!(summary(&cut), "ended at its length limit");
        assert_eq!(
            (duration(Duration::from_millis(412)), duration(Duration::from_millis(1_500))),
            ("412 ms".into(), "1.50 s".into())
        );
    }
}
