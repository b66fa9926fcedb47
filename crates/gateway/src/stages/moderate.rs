//! Stage `moderate`: checks everything that the caller wrote and the model may see against the rules. The verdict names
//! a rule, never the caller's words.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::{Catalog, ServedModel};
use headrace_domain::{Call, Code, ContentPlace, ProjectId, Stage, TextPlace};
use headrace_moderation::{Judge, Phrases, PlaceholderMap, Verdict};
use headrace_render::could_fit;

use crate::judging::JudgedCall;
use crate::request_context::RequestContext;
use crate::state::{ModeratedCall, RoutedCall};

use redact::{KeptBodies, redact};
use texts::each_text;

mod redact;
mod texts;

/// Most bytes of a call that a judge is asked about at once. Longer calls are judged in parts.
const JUDGED_BYTES: usize = 32 << 10;

impl RoutedCall {
    pub(crate) async fn moderate(self, context: &mut RequestContext) -> Result<ModeratedCall, Rejection> {
        let Some(judge) = input_judge(&self.catalog, &self.principal.project) else {
            return Ok(ModeratedCall(self));
        };
        let Self { principal, mut call, mut taken, catalog, model } = self;
        let others = Arc::clone(&judge);
        let mut bodies = KeptBodies::default();
        if judge.input_redactions().is_some() {
            bodies = KeptBodies { fallback: taken.body.take(), recorded: context.request.take() };
        }
        let judged = if taken.turn.is_some() {
            // As in stage `render`: the threads of the event loop must stay free.
            let model = Arc::clone(&model);
            let judging = tokio::task::spawn_blocking(move || {
                let judged = judge_call(&*judge, &model, &mut call, &mut bodies);
                (call, taken, bodies, judged)
            });
            let judged;
            (call, taken, bodies, judged) = judging.await.map_err(|_| stopped())?;
            judged
        } else {
            judge_call(&*judge, &model, &mut call, &mut bodies)
        };
        let JudgedInput { verdict, placeholders } = judged?;
        context.record.moderation = verdict.rule().map(str::to_owned);
        let rule = verdict.rule().and_then(|rule| others.rule_named(rule));
        context.record.input_verdicts.extend(rule.map(|rule| rule.matched(ContentPlace::Input)));
        not_blocked(verdict)?;
        context.placeholders = placeholders;
        if others.input_redactions().is_some() {
            (taken.body, context.request) = (bodies.fallback, bodies.recorded);
        }
        // Other servers see the call as its model does.
        ask_judges(&*others, &model, &call, context).await?;
        context.end_stage(Stage::Moderate);
        Ok(ModeratedCall(Self { principal, call, taken, catalog, model }))
    }
}

/// What the rules here found in a call.
struct JudgedInput {
    verdict: Verdict,
    /// The placeholders of redacted values. `None` if none is to be put back.
    placeholders: Option<Arc<PlaceholderMap>>,
}

/// Judges a call, and redacts it unless a rule blocks it.
fn judge_call(
    judge: &dyn Judge,
    model: &ServedModel,
    call: &mut Call,
    bodies: &mut KeptBodies,
) -> Result<JudgedInput, Rejection> {
    let verdict = verdict(judge, model, call)?;
    let rules = judge.input_redactions().filter(|_| !verdict.is_blocked());
    let placeholders = match rules {
        Some(rules) => redact(rules, model, call, bodies)?,
        None => None,
    };
    Ok(JudgedInput { verdict, placeholders })
}

/// Asks the judges on other servers about everything that the caller wrote.
async fn ask_judges(
    judge: &dyn Judge,
    model: &ServedModel,
    call: &Call,
    context: &mut RequestContext,
) -> Result<(), Rejection> {
    let rules = judge.input_judges();
    if rules.is_empty() {
        return Ok(());
    }
    let mut texts = vec![String::new()];
    each_text(model, call, &mut |text, _| add_text(text, &mut texts));
    let late = Arc::clone(context.late_verdicts());
    let judged = JudgedCall { request: context.id, late, clock: Arc::clone(&context.clock) };
    let asked = texts.iter().filter(|text| !text.is_empty());
    let asked = asked.map(|text| judged.ask(rules, text, ContentPlace::Input));
    let matched = futures_util::future::join_all(asked).await.into_iter().flatten().min();
    let Some(rule) = matched.and_then(|at| rules.iter().find(|rule| rule.rule == at)) else {
        return Ok(());
    };
    let name = &rule.description.name;
    context.record.moderation = Some(name.to_string());
    context.record.input_verdicts.push(rule.description.matched(ContentPlace::Input));
    let message = judge.message(rule.rule).cloned().unwrap_or_default();
    not_blocked(Verdict::Blocked { rule: Arc::clone(name), message })
}

/// Adds a text to the last of the texts that judges are asked about, or begins a further one.
fn add_text(text: &str, texts: &mut Vec<String>) {
    let mut rest = text;
    while !rest.is_empty() {
        let used = texts.last().map_or(JUDGED_BYTES, String::len);
        if used >= JUDGED_BYTES {
            texts.push(String::new());
            continue;
        }
        let fits = rest.floor_char_boundary(JUDGED_BYTES.saturating_sub(used));
        let (part, behind) = rest.split_at(fits.max(rest.ceil_char_boundary(1)));
        rest = behind;
        if let Some(last) = texts.last_mut() {
            last.push_str(part);
            last.push('\n');
        }
    }
}

/// Checks content that is not a call, but goes to the same model as one, and redacts it as a call.
pub(crate) fn may_pass(
    catalog: &Catalog,
    project: &ProjectId,
    model: &ServedModel,
    call: &mut Call,
) -> Result<(), Rejection> {
    let Some(judge) = input_judge(catalog, project) else { return Ok(()) };
    not_blocked(judge_call(&*judge, model, call, &mut KeptBodies::default())?.verdict)
}

/// The judge of what a project's calls send. `None` if nothing is checked.
fn input_judge(catalog: &Catalog, project: &ProjectId) -> Option<Arc<dyn Judge>> {
    let judge = catalog.judge()?;
    let judge = judge.of_project(Some(project)).unwrap_or_else(|| Arc::clone(judge));
    Some(judge).filter(|judge| judge.judges_input())
}

fn not_blocked(verdict: Verdict) -> Result<(), Rejection> {
    match verdict {
        Verdict::Blocked { rule, message } => {
            Err(Rejection::new(Code::ContentPolicy, format!("{message} (content rule `{rule}`)")))
        }
        _ => Ok(()),
    }
}

/// The verdict on each text of a call by itself, and on phrases that are split over texts. The rendered prompt is not
/// judged: it also contains the template's words, and a rule on `user` would reject every call.
fn verdict(judge: &dyn Judge, model: &ServedModel, call: &Call) -> Result<Verdict, Rejection> {
    if !call.dialect.response().is_some_and(|ask| ask.cuts) {
        could_fit(model, call)?;
    }
    let mut reading = Reading::of(judge);
    match each_text(model, call, &mut |text, place| reading.read(text, place)) {
        true => Ok(reading.gravest),
        false => Err(unreadable(model)),
    }
}

/// The verdict on the texts that were read so far.
struct Reading<'j> {
    judge: &'j dyn Judge,
    gravest: Verdict,
    /// All texts that others may continue, the contents of messages, and those of the user's messages. A caller may split a phrase
    /// over any of these sequences.
    sequences: [Phrases<'j>; 3],
}

impl<'j> Reading<'j> {
    fn of(judge: &'j dyn Judge) -> Self {
        Self { judge, gravest: Verdict::Clean, sequences: std::array::from_fn(|_| Phrases::of(judge)) }
    }

    fn read(&mut self, text: &str, place: TextPlace) {
        if self.gravest.is_blocked() {
            return;
        }
        let continued = match place {
            TextPlace::Apart => 0,
            TextPlace::Beside => 1,
            TextPlace::Content { of_user: false } => 2,
            TextPlace::Content { of_user: true } => 3,
        };
        let split = self.sequences.iter_mut().take(continued).map(|phrases| phrases.next(text));
        let verdict = split.fold(self.judge.judge(text), Verdict::graver);
        self.gravest = std::mem::take(&mut self.gravest).graver(verdict);
    }
}

/// The rejection of a prompt in token ids, for a model with content rules whose tokenizer is not available here.
fn unreadable(model: &ServedModel) -> Rejection {
    let message = format!(
        "Rules on content look at what is sent to `{}`, and a prompt in token ids cannot be read here: its tokenizer is its \
         upstream's. Send text.",
        model.name
    );
    Rejection::new(Code::UnsupportedValue, message).at(Stage::Moderate).with_param("prompt")
}

fn stopped() -> Rejection {
    let message = "The request could not be judged: the judging was stopped. Nothing was charged.";
    Rejection::new(Code::InternalError, message).at(Stage::Moderate)
}
