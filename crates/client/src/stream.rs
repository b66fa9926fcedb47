//! Reads a chat stream: turns bytes into events and assembles the answer. Dropping the stream cancels the call. Retries
//! nothing, since the answer has started.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::chat_bodies::ChatChunk;
use headrace_wire::sse::{SseEvent, SseReader};

use crate::answer::CallSlots;
use crate::error::causes;
use crate::{Answer, ApiError, ChatEvent, ClientError, ConnectTimes, Timing};

/// Maximum wait for the end of the body after the end of the stream. Reading it lets the connection be reused.
const BODY_END_WAIT: Duration = Duration::from_millis(50);

/// A streamed answer. Dropping it closes the connection. The server then cancels the call and frees what it held.
#[derive(Debug)]
pub struct ChatStream {
    response: reqwest::Response,
    reader: SseReader,
    sent: Instant,
    ready: VecDeque<ChatEvent>,
    calls: CallSlots,
    answer: Answer,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// More events may arrive.
    Open,
    /// The stream ended well, but the end of the body is not read yet.
    Ending,
    /// The stream ended well.
    Done,
    /// The stream failed, and the error was returned.
    Failed,
}

/// When and how the answered attempt was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) connect: Option<ConnectTimes>,
    /// The time when the transport had taken the body.
    pub(crate) taken: Option<Instant>,
    /// Number of failed attempts before this one.
    pub(crate) retries: u32,
}

impl ChatStream {
    pub(crate) fn new(
        response: reqwest::Response,
        sent: Sent,
        request_id: Option<String>,
        trace_id: Option<String>,
    ) -> Self {
        let Sent { at: sent, connect, taken, retries } = sent;
        let taken = taken.map(|taken| taken.saturating_duration_since(sent));
        let timing = Timing { connect, sent: taken, headers: sent.elapsed(), retries, ..Timing::default() };
        Self {
            response,
            reader: SseReader::new(),
            sent,
            ready: VecDeque::new(),
            calls: CallSlots::default(),
            answer: Answer { request_id, trace_id, timing, ..Answer::default() },
            state: State::Open,
        }
    }

    /// The answer so far.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Stops reading and returns the answer so far. Before the end of the stream, this cancels the call.
    pub fn into_answer(mut self) -> Answer {
        if self.state == State::Open {
            self.answer.timing.total = self.sent.elapsed();
        }
        self.answer
    }

    /// The next event, or `None` after a good end. Cancel-safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// An error inside the stream, a stream that ends early, or data that is not a chat stream. After an error, no more
    /// events follow.
    pub async fn next(&mut self) -> Result<Option<ChatEvent>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.state {
                State::Open => {}
                State::Ending => {
                    self.state = State::Done;
                    let _ = tokio::time::timeout(BODY_END_WAIT, self.response.chunk()).await;
                    return Ok(None);
                }
                State::Done | State::Failed => return Ok(None),
            }
            let bytes = self.response.chunk().await;
            if let Err(error) = self.take(bytes) {
                self.state = State::Failed;
                return Err(error);
            }
        }
    }

    /// Reads to the end and returns the answer.
    ///
    /// # Errors
    /// See [`Self::next`].
    pub async fn finish(mut self) -> Result<Answer, ClientError> {
        while self.next().await?.is_some() {}
        Ok(self.into_answer())
    }

    /// Processes what the connection returned: bytes, its end, or a failure.
    fn take<B: AsRef<[u8]>>(&mut self, bytes: Result<Option<B>, reqwest::Error>) -> Result<(), ClientError> {
        match bytes {
            Ok(Some(bytes)) => {
                let events = self.reader.push(bytes.as_ref())?;
                events.into_iter().try_for_each(|event| self.event(&event))
            }
            // Some servers omit the end mark. A finish reason and a clean end are enough.
            Ok(None) if self.answer.finish_reason.is_some() && !self.reader.is_mid_event() => {
                self.end();
                Ok(())
            }
            Ok(None) => Err(self.cut_off(None)),
            Err(error) => Err(self.cut_off(Some(causes(&error)))),
        }
    }

    fn event(&mut self, event: &SseEvent) -> Result<(), ClientError> {
        if self.state != State::Open {
            return Ok(());
        }
        if event.is_done() {
            self.end();
            return Ok(());
        }
        let chunk: ChatChunk = serde_json::from_str(&event.data)
            .map_err(|error| ClientError::Protocol(format!("a chunk of the stream: {error}")))?;
        if let Some(detail) = chunk.error {
            let error = ApiError::from_detail(detail, self.answer.request_id.clone());
            return Err(ClientError::Api(Box::new(error)));
        }
        let events = self.answer.take(chunk, self.sent.elapsed(), &mut self.calls);
        self.ready.extend(events);
        Ok(())
    }

    fn end(&mut self) {
        self.state = State::Ending;
        self.answer.timing.total = self.sent.elapsed();
    }

    fn cut_off(&self, cause: Option<String>) -> ClientError {
        ClientError::CutOff { request_id: self.answer.request_id.clone(), cause }
    }
}
