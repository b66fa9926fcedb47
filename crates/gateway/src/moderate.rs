//! Stage `moderate`: the caller's words against the rules. The verdict names a rule, never the words.

use headrace_domain::{Prompt, PromptItem, Stage};
use headrace_moderation::Verdict;
use headrace_wire::ErrorKind;

use crate::Gateway;
use crate::refused::{Refused, Why};
use crate::state::{Moderated, Routed};

impl Routed {
    pub(crate) fn moderate(mut self, gateway: &Gateway) -> Result<Moderated, Refused> {
        let Some(judge) = &gateway.parts().judge else { return Ok(Moderated(self)) };
        let verdict = match &self.call.prompt {
            Prompt::Conversation(conversation) => {
                judge.judge_all(&mut conversation.messages.iter().flat_map(|message| {
                    let calls = message.tool_calls.iter().map(|call| call.arguments.as_str());
                    message.content.as_deref().into_iter().chain(message.reasoning.as_deref()).chain(calls)
                }))
            }
            Prompt::Raw(items) => judge.judge_all(&mut items.iter().filter_map(|item| match item {
                PromptItem::Text(text) => Some(text.as_str()),
                PromptItem::Ids(_) => None,
            })),
        };
        self.dossier.record.moderation = verdict.rule().map(str::to_owned);
        if let Verdict::Blocked { rule, message } = verdict {
            let message = format!("{message} (content rule `{rule}`)");
            let why = Why::new(Stage::Moderate, 400, ErrorKind::ContentPolicy, "content_policy", message);
            return Err(self.dossier.refuse(why));
        }
        self.dossier.mark(Stage::Moderate);
        Ok(Moderated(self))
    }
}
