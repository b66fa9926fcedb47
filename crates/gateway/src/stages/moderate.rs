//! Stage `moderate`: checks everything that the caller wrote and the model may see against the rules. The verdict names
//! a rule, never the caller's words.

use std::sync::Arc;

use headrace_domain::{Call, Code, Conversation, EncodeText, Prompt, PromptItem, Role, Stage};
use headrace_moderation::{Judge, Phrases, Verdict};

use crate::catalog::{Catalog, ServedModel};
use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Moderated, Routed};

use super::render::could_fit;

impl Routed {
    pub(crate) async fn moderate(self, dossier: &mut Dossier) -> Result<Moderated, Why> {
        let Some(judge) = self.catalog.judge().cloned() else { return Ok(Moderated(self)) };
        let Self { principal, call, taken, catalog, model } = self;
        let (call, taken, verdict) = if taken.turn.is_some() {
            // As in stage `render`: the threads of the event loop must stay free.
            let model = Arc::clone(&model);
            let judging = tokio::task::spawn_blocking(move || {
                let verdict = verdict(&*judge, &model, &call);
                (call, taken, verdict)
            });
            judging.await.map_err(|_| stopped())?
        } else {
            let verdict = verdict(&*judge, &model, &call);
            (call, taken, verdict)
        };
        let verdict = verdict?;
        dossier.record.moderation = verdict.rule().map(str::to_owned);
        not_blocked(verdict)?;
        dossier.mark(Stage::Moderate);
        Ok(Moderated(Self { principal, call, taken, catalog, model }))
    }
}

/// Checks content that is not a call, but goes to the same model as one.
pub(crate) fn may_pass(catalog: &Catalog, model: &ServedModel, call: &Call) -> Result<(), Why> {
    catalog.judge().map_or(Ok(()), |judge| not_blocked(verdict(&**judge, model, call)?))
}

fn not_blocked(verdict: Verdict) -> Result<(), Why> {
    match verdict {
        Verdict::Blocked { rule, message } => {
            Err(Why::new(Code::ContentPolicy, format!("{message} (content rule `{rule}`)")))
        }
        _ => Ok(()),
    }
}

/// The verdict on phrases that are split over consecutive messages, or over consecutive messages of the user.
fn between_messages(judge: &dyn Judge, conversation: &Conversation) -> Verdict {
    if judge.longest_phrase_chars() == 0 {
        return Verdict::Clean;
    }
    let (mut all, mut of_user) = (Phrases::of(judge), Phrases::of(judge));
    let mut gravest = Verdict::Clean;
    for message in &conversation.messages {
        let text = message.content.as_deref().unwrap_or_default();
        gravest = gravest.graver(all.next(text));
        if message.role == Role::User {
            gravest = gravest.graver(of_user.next(text));
        }
        if gravest.is_blocked() {
            break;
        }
    }
    gravest
}

/// The verdict on each text of a call by itself, and on phrases that are split over messages. The rendered prompt is
/// not judged: it also contains the template's words, and a rule on `user` would reject every call.
fn verdict(judge: &dyn Judge, model: &ServedModel, call: &Call) -> Result<Verdict, Why> {
    if !call.response.as_ref().is_some_and(|ask| ask.cuts) {
        could_fit(model, call)?;
    }
    Ok(match &call.prompt {
        Prompt::Conversation(conversation) => {
            let texts = headrace_prompt::texts_of(conversation);
            let verdict = judge.judge_all(&mut texts.iter().map(AsRef::as_ref));
            if verdict.is_blocked() { verdict } else { verdict.graver(between_messages(judge, conversation)) }
        }
        Prompt::Encode(to_encode) => {
            let decoded = |text: &EncodeText| match (text, model.lane.tokenizer()) {
                (EncodeText::One(PromptItem::Ids(ids)), Some(tokenizer)) => {
                    Some(tokenizer.decode(ids, false))
                }
                _ => None,
            };
            let decoded: Vec<String> = to_encode.texts.iter().filter_map(decoded).collect();
            judge.judge_all(&mut to_encode.written().chain(decoded.iter().map(String::as_str)))
        }
        Prompt::Relayed(relayed) => {
            let (mut gravest, mut phrases) = (Verdict::Clean, Phrases::of(judge));
            let readable = headrace_wire::relay::texts(&relayed.body, &mut |text| {
                if !gravest.is_blocked() {
                    let verdict = judge.judge(text).graver(phrases.next(text));
                    gravest = std::mem::replace(&mut gravest, Verdict::Clean).graver(verdict);
                }
            });
            if !readable {
                return Err(unreadable(model));
            }
            gravest
        }
        Prompt::Raw(items) => {
            let mut gravest = Verdict::Clean;
            for item in items {
                gravest = gravest.graver(match item {
                    PromptItem::Text(text) => judge.judge(text),
                    PromptItem::Ids(ids) => match model.lane.tokens() {
                        Some(lane) => judge.judge(&lane.tokenizer.decode(ids, false)),
                        None => Verdict::Clean,
                    },
                });
                if gravest.is_blocked() {
                    break;
                }
            }
            gravest
        }
    })
}

/// The rejection of a prompt in token ids, for a model with content rules whose tokenizer is not available here.
fn unreadable(model: &ServedModel) -> Why {
    let message = format!(
        "Rules on content look at what is sent to `{}`, and a prompt in token ids cannot be read here: its tokenizer is its \
         upstream's. Send text.",
        model.name
    );
    Why::new(Code::UnsupportedValue, message).at(Stage::Moderate).with_param("prompt")
}

fn stopped() -> Why {
    let message = "The request could not be judged: the judging was stopped. Nothing was charged.";
    Why::new(Code::InternalError, message).at(Stage::Moderate)
}
