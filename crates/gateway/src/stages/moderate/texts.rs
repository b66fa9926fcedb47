//! The texts of a call that its model may read, in their order.

use headrace_catalog::ServedModel;
use headrace_domain::{Call, EncodeText, Prompt, PromptItem, Role, TextPlace};

/// Gives every text of a call that its model may read to `each`. Returns `false` if a prompt is in ids of a tokenizer that is not here.
pub(super) fn each_text(model: &ServedModel, call: &Call, each: &mut dyn FnMut(&str, TextPlace)) -> bool {
    match &call.prompt {
        Prompt::Conversation(conversation) => {
            for message in &conversation.messages {
                let of_user = message.role == Role::User;
                message.text_parts().for_each(|part| each(part, TextPlace::Content { of_user }));
                if let Some(joined) = message.content.as_deref().filter(|_| !message.joints.is_empty()) {
                    each(joined, TextPlace::Apart);
                }
            }
            let others = headrace_prompt::texts_beside_contents(conversation);
            others.iter().for_each(|text| each(text, TextPlace::Apart));
        }
        Prompt::Encode(to_encode) => {
            to_encode.written().for_each(|text| each(text, TextPlace::Apart));
            for text in &to_encode.texts {
                if let (EncodeText::One(PromptItem::Ids(ids)), Some(tokenizer)) =
                    (text, model.backend.tokenizer())
                {
                    each(&tokenizer.decode(ids, false), TextPlace::Apart);
                }
            }
        }
        Prompt::Relayed(relayed) => return headrace_relay::texts(&relayed.body, each),
        Prompt::Raw(items) => {
            for item in items {
                match item {
                    PromptItem::Text(text) => each(text, TextPlace::Apart),
                    PromptItem::Ids(ids) => {
                        let text = model.backend.tokens().map(|backend| backend.tokenizer.decode(ids, false));
                        each(&text.unwrap_or_default(), TextPlace::Apart);
                    }
                }
            }
        }
    }
    true
}
