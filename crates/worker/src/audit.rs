//! Checks a worker's frames against the job. Each frame becomes an event or a named fault. No frame can make an answer
//! longer, different or more expensive than the job allows.

use std::fmt;

use headrace_domain::{FinishReason, TokenLogprob};
use headrace_engine_api::{Job, JobError, JobEvent, JobReport, LoadReport, PromptScores};

use crate::about::bounded;
use crate::frame::{ChoiceEnd, WorkerFrame};
use crate::limits::{MAX_ALIVE_FRAMES, MAX_TOKEN_BYTES};
use crate::report::{KeptPrompt, ReportExtras, WorkerReport};

/// A fault in a worker's frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerFault {
    /// The job starts a second time.
    BegunTwice,
    /// Tokens arrive before the job has started.
    NotBegun,
    /// More tokens were cached than the prompt has.
    Cached(u32),
    /// A frame for a choice that was not requested.
    Choice(u32),
    /// A frame for a choice that has ended.
    AfterItsEnd(u32),
    /// A token id outside the vocabulary.
    Id(u32),
    /// More tokens than requested.
    TooManyTokens {
        /// The choice.
        choice: u32,
        /// The number requested.
        limit: u64,
    },
    /// More text than the ids can represent.
    TooMuchText(u32),
    /// Log-probabilities that were not requested, or another number of them.
    Logprobs(u32),
    /// Prompt scores that were not requested, or more than the prompt has tokens.
    Scores,
    /// An impossible finish reason for the choice.
    End(u32),
    /// The job ends before all of its choices.
    Unfinished,
    /// The additional report arrives a second time.
    ReportedTwice,
    /// The reported usage does not match the frames.
    Usage,
    /// Too many heartbeats.
    AliveFrames,
}

impl fmt::Display for WorkerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BegunTwice => f.write_str("a job that began twice"),
            Self::NotBegun => f.write_str("tokens of a job that has not begun"),
            Self::Cached(tokens) => write!(f, "{tokens} cached tokens, more than the prompt has"),
            Self::Choice(choice) => write!(f, "choice {choice}, which was not asked for"),
            Self::AfterItsEnd(choice) => write!(f, "more of choice {choice} after its end"),
            Self::Id(id) => write!(f, "id {id}, which is outside of the vocabulary"),
            Self::TooManyTokens { choice, limit } => {
                write!(f, "more than the {limit} tokens of choice {choice} that were asked for")
            }
            Self::TooMuchText(choice) => write!(f, "more text of choice {choice} than its ids can stand for"),
            Self::Logprobs(choice) => {
                write!(f, "log-probabilities of choice {choice} other than those that were asked for")
            }
            Self::Scores => f.write_str("scores of the prompt other than those that were asked for"),
            Self::End(choice) => write!(f, "an end of choice {choice} that it cannot have"),
            Self::Unfinished => f.write_str("the end of a job whose choices have not ended"),
            Self::ReportedTwice => f.write_str("a job that was reported twice"),
            Self::Usage => f.write_str("other usage than what came"),
            Self::AliveFrames => f.write_str("signs of life without end"),
        }
    }
}

impl std::error::Error for WorkerFault {}

/// The meaning of a frame.
#[derive(Debug, PartialEq)]
pub enum FrameMeaning {
    /// An event that is not the last.
    Event(JobEvent),
    /// Only a load report.
    Load(LoadReport),
    /// A frame that yields no event yet.
    Nothing,
    /// The end of the job: success, or the error.
    Over(Result<(), JobError>, WorkerReport),
}

/// The state of one job, as the gateway sees it.
#[derive(Debug)]
pub struct JobAudit {
    first_choice: u32,
    choices: Vec<ChoiceAudit>,
    vocab: u32,
    prompt: u64,
    /// Maximum number of ids still to come, per choice.
    limit: u64,
    continues: bool,
    stop: Vec<String>,
    logprobs: Option<u8>,
    /// The prompt scores so far, if they were requested. `None` if no more may come.
    scores: Option<Vec<TokenLogprob>>,
    top_scores: u8,
    cached: Option<u32>,
    marked: KeptPrompt,
    also: Option<ReportExtras>,
    output: u64,
    alive_frames: u32,
}

#[derive(Debug, Clone, Default)]
struct ChoiceAudit {
    ids: u64,
    text: u64,
    ended: bool,
}

impl JobAudit {
    /// Creates the state of a new job. `vocab` and `window` are those of the model.
    pub fn new(job: &Job, vocab: u32, window: u32) -> Self {
        let (own, generated) = job.parts();
        let room = u64::from(window).saturating_sub(own.len() as u64).min(u64::from(job.sampling.max_tokens));
        Self {
            first_choice: job.first_choice,
            choices: vec![ChoiceAudit::default(); job.sampling.n as usize],
            vocab,
            prompt: job.prompt.len() as u64,
            limit: room.saturating_sub(generated.len() as u64),
            continues: !generated.is_empty(),
            stop: job.sampling.stop.clone(),
            logprobs: job.sampling.logprobs,
            scores: job.sampling.prompt_logprobs.map(|_| Vec::new()),
            top_scores: job.sampling.prompt_logprobs.unwrap_or_default(),
            cached: None,
            marked: KeptPrompt::by(&job.pins),
            also: None,
            output: 0,
            alive_frames: 0,
        }
    }

    /// Checks the next frame.
    ///
    /// # Errors
    /// The fault in the frame.
    pub fn take(&mut self, frame: WorkerFrame) -> Result<FrameMeaning, WorkerFault> {
        match frame {
            WorkerFrame::Alive(load) => {
                self.alive_frames = self.alive_frames.saturating_add(1);
                if self.alive_frames > MAX_ALIVE_FRAMES {
                    Err(WorkerFault::AliveFrames)
                } else {
                    Ok(FrameMeaning::Load(bounded(load)))
                }
            }
            WorkerFrame::Started { cached_tokens } => self.started(cached_tokens),
            WorkerFrame::Scored(tokens) => self.scored(tokens),
            WorkerFrame::Tokens { choice, ids, text, logprobs } => self.tokens(choice, ids, text, logprobs),
            WorkerFrame::Finished { choice, end } => self.finished(choice, end),
            WorkerFrame::Also(also) => match self.also.replace(also) {
                None => Ok(FrameMeaning::Nothing),
                Some(_) => Err(WorkerFault::ReportedTwice),
            },
            WorkerFrame::Done(report) => {
                let whole = self.choices.iter().all(|choice| choice.ended) && self.scores.is_none();
                if !whole {
                    return Err(WorkerFault::Unfinished);
                }
                let also = self.also.take().unwrap_or_default();
                self.check(&report, &also)?;
                Ok(FrameMeaning::Over(
                    Ok(()),
                    WorkerReport { also: Box::new(also.within(self.marked)), ..report },
                ))
            }
            WorkerFrame::Failed { error, report } => {
                let also = self.also.take().unwrap_or_default().within(self.marked);
                let report = WorkerReport { output: self.output, also: Box::new(also), ..report };
                Ok(FrameMeaning::Over(Err(error.into()), report))
            }
        }
    }

    /// Builds a report from the frames alone, for a worker that sends none.
    pub fn seen(&self) -> JobReport {
        let cached_input = u64::from(self.cached.unwrap_or_default());
        let input = if self.output > 0 { self.prompt.saturating_sub(cached_input) } else { 0 };
        WorkerReport { input, cached_input, output: self.output, ..WorkerReport::default() }
            .within(self.prompt, 0)
    }

    fn started(&mut self, cached_tokens: u32) -> Result<FrameMeaning, WorkerFault> {
        if self.cached.is_some() {
            return Err(WorkerFault::BegunTwice);
        }
        if u64::from(cached_tokens) > self.prompt {
            return Err(WorkerFault::Cached(cached_tokens));
        }
        self.cached = Some(cached_tokens);
        Ok(FrameMeaning::Event(JobEvent::Started { cached_tokens }))
    }

    fn scored(&mut self, tokens: Vec<TokenLogprob>) -> Result<FrameMeaning, WorkerFault> {
        let (vocab, top) = (self.vocab, usize::from(self.top_scores));
        let fits = tokens.iter().all(|token| fits(token, vocab, top));
        let Some(scores) = self.scores.as_mut().filter(|_| fits && !tokens.is_empty()) else {
            return Err(WorkerFault::Scores);
        };
        scores.extend(tokens);
        match (scores.len() as u64).cmp(&self.prompt) {
            std::cmp::Ordering::Less => Ok(FrameMeaning::Nothing),
            std::cmp::Ordering::Greater => Err(WorkerFault::Scores),
            std::cmp::Ordering::Equal => {
                let tokens = self.scores.take().unwrap_or_default();
                Ok(FrameMeaning::Event(JobEvent::Scored(PromptScores { tokens })))
            }
        }
    }

    fn choice(&mut self, number: u32) -> Result<&mut ChoiceAudit, WorkerFault> {
        let at = number.checked_sub(self.first_choice).map(|at| at as usize);
        let choice = at.and_then(|at| self.choices.get_mut(at)).ok_or(WorkerFault::Choice(number))?;
        if choice.ended { Err(WorkerFault::AfterItsEnd(number)) } else { Ok(choice) }
    }

    fn tokens(
        &mut self,
        number: u32,
        ids: Vec<u32>,
        text: String,
        logprobs: Vec<TokenLogprob>,
    ) -> Result<FrameMeaning, WorkerFault> {
        if self.cached.is_none() || self.scores.is_some() {
            return Err(WorkerFault::NotBegun);
        }
        let (vocab, limit) = (self.vocab, self.limit);
        if let Some(id) = ids.iter().find(|id| **id >= vocab) {
            return Err(WorkerFault::Id(*id));
        }
        let wanted = if self.logprobs.is_some() { ids.len() } else { 0 };
        let top = usize::from(self.logprobs.unwrap_or_default());
        if logprobs.len() != wanted || !logprobs.iter().all(|token| fits(token, vocab, top)) {
            return Err(WorkerFault::Logprobs(number));
        }
        let choice = self.choice(number)?;
        choice.ids = choice.ids.saturating_add(ids.len() as u64);
        choice.text = choice.text.saturating_add(text.len() as u64);
        if choice.ids > limit {
            return Err(WorkerFault::TooManyTokens { choice: number, limit });
        }
        if choice.text > choice.ids.saturating_add(1).saturating_mul(MAX_TOKEN_BYTES) {
            return Err(WorkerFault::TooMuchText(number));
        }
        self.output = self.output.saturating_add(ids.len() as u64);
        Ok(FrameMeaning::Event(JobEvent::Tokens { choice: number, ids, text, logprobs }))
    }

    fn finished(&mut self, number: u32, end: ChoiceEnd) -> Result<FrameMeaning, WorkerFault> {
        let (limit, continues) = (self.limit, self.continues);
        let known = |matched: &String| self.stop.contains(matched);
        let reason = match end {
            ChoiceEnd::Stop => FinishReason::Stop,
            ChoiceEnd::Length => FinishReason::Length,
            ChoiceEnd::Matched(matched) if known(&matched) => FinishReason::StopString { matched },
            ChoiceEnd::Matched(_) | ChoiceEnd::Other => return Err(WorkerFault::End(number)),
        };
        let choice = self.choice(number)?;
        // An ended choice has tokens, unless another engine generated them or none were requested.
        let is_empty = choice.ids == 0 && limit > 0 && !continues;
        let is_short = reason == FinishReason::Length && choice.ids < limit && !continues;
        if is_empty || is_short {
            return Err(WorkerFault::End(number));
        }
        choice.ended = true;
        Ok(FrameMeaning::Event(JobEvent::Finished { choice: number, reason }))
    }

    fn check(&self, report: &WorkerReport, also: &ReportExtras) -> Result<(), WorkerFault> {
        let cached = u64::from(self.cached.unwrap_or_default());
        let writes = also.writes(self.marked);
        let read = report.input.checked_add(report.cached_input);
        let prompt = writes.zip(read).and_then(|(writes, read)| read.checked_add(writes));
        let fits = report.output == self.output
            && report.cached_input == cached
            && prompt.is_some_and(|prompt| prompt <= self.prompt);
        if fits { Ok(()) } else { Err(WorkerFault::Usage) }
    }

    /// Returns the number of prompt tokens.
    pub fn prompt(&self) -> u64 {
        self.prompt
    }
}

/// Returns whether a log-probability is one that could have been requested. The chosen token may be listed besides the
/// likeliest ones.
fn fits(token: &TokenLogprob, vocab: u32, top: usize) -> bool {
    let id = |id: u32| id < vocab;
    let number = |logprob: f32| !logprob.is_nan() && logprob <= 0.001;
    id(token.id)
        && token.top.len() <= top.saturating_add(1)
        && token.logprob.is_none_or(number)
        && token.top.iter().all(|other| id(other.id) && number(other.logprob))
}
