//! Caches the text that a template writes around the texts of messages. If the template only writes those texts out
//! (`proof`), the next conversation with the same roles is put together without running the template. Must not know
//! tokens. Knows masks only as something that texts contain.

mod proof;

pub(crate) use proof::only_writes;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use headrace_domain::{Conversation, Message, Role, ToolChoice};
use parking_lot::RwLock;

use crate::bounds::TemplateLimits;
use crate::environment::CompiledTemplate;
use crate::mask::{Masker, may_have_masks};
use crate::options::RenderOptions;
use crate::part::PromptPart;

/// The maximum number of messages of a conversation with an outline.
const MOST_MESSAGES: usize = 64;
/// The maximum number of cached outlines. If one more is added, all others are dropped.
const MOST_KEPT: usize = 256;
/// The text that replaces each message's text while an outline is computed.
const STAND_IN: &str = "What stands here is the text of a message of someone.";
/// Outlines are computed with `max_output_bytes` divided by this number.
const PART_OF_LIMITS: usize = 1024;
/// The maximum length of a text that is filled into an outline, in bytes. Masking makes it at most four times as long.
/// The template's output for it then has at most `PART_OF_LIMITS` times the bytes of the output for the stand-in. The
/// stand-in was within the divided limits, so the text is within the full limits.
const LONGEST: usize = STAND_IN.len() * PART_OF_LIMITS / 4;

/// The outlines of a template that only writes texts out.
pub(crate) struct OutlineCache {
    /// The template, compiled with the limits of [`part_of`].
    pub(crate) compiled: CompiledTemplate,
    /// The cached outlines by key. `None` if the template rejects such conversations or does not show the texts as they
    /// are.
    kept: RwLock<Kept>,
}

type Kept = HashMap<Box<[u8]>, Option<Arc<TextOutline>>, RandomState>;

/// The text around the texts of a conversation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextOutline {
    /// For each message's text, in the order of the prompt, the text before it and the index of the message.
    texts: Vec<(String, usize)>,
    /// The text after the last message's text.
    rest: String,
}

/// Returns the limits for computing outlines.
pub(crate) const fn part_of(limits: TemplateLimits) -> TemplateLimits {
    TemplateLimits { max_output_bytes: limits.max_output_bytes / PART_OF_LIMITS, ..limits }
}

/// Everything that an outline depends on: the options and the roles of the messages.
pub(crate) struct OutlineKey {
    bytes: [u8; MOST_MESSAGES + 1],
    length: usize,
}

impl OutlineCache {
    /// Creates an empty cache.
    pub(crate) fn new(compiled: CompiledTemplate) -> Self {
        Self { compiled, kept: RwLock::default() }
    }

    /// Returns the outline for `key`. Calls `find` to compute it the first time.
    pub(crate) fn get(
        &self,
        key: &OutlineKey,
        find: impl FnOnce() -> Option<TextOutline>,
    ) -> Option<Arc<TextOutline>> {
        let key = key.bytes.get(..key.length)?;
        if let Some(known) = self.kept.read().get(key) {
            return known.clone();
        }
        let found = find().map(Arc::new);
        let mut kept = self.kept.write();
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(key.into(), found.clone());
        found
    }
}

impl OutlineKey {
    /// Returns the key of a conversation, or `None` if outlines do not apply to it. They apply if the conversation
    /// consists only of texts that trimming does not change.
    pub(crate) fn of(conversation: &Conversation, options: &RenderOptions<'_>) -> Option<Self> {
        let shows_tools = !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None;
        let effort = options.reasoning.is_some_and(|wish| wish.effort.is_some());
        if shows_tools || effort || !conversation.template.is_empty() {
            return None;
        }
        let thinking = match options.reasoning.and_then(|wish| wish.enabled) {
            None => 0,
            Some(false) => 2,
            Some(true) => 4,
        };
        let mut key = Self { bytes: [0; MOST_MESSAGES + 1], length: conversation.messages.len() + 1 };
        let (wishes, roles) = key.bytes.split_first_mut()?;
        *wishes = thinking | u8::from(options.add_generation_prompt);
        for (role, message) in
            roles.get_mut(..conversation.messages.len())?.iter_mut().zip(&conversation.messages)
        {
            *role = is_plain(message).then(|| number(message.role))?;
        }
        Some(key)
    }
}

const fn number(role: Role) -> u8 {
    match role {
        Role::System => 0,
        Role::User => 1,
        Role::Assistant => 2,
        Role::Tool => 3,
    }
}

/// Whether a message is only a role and a text, and the text is not blank and has no white space at its ends.
fn is_plain(message: &Message) -> bool {
    let Message {
        role: _,
        content: Some(text),
        joints: _,
        media: _,
        name: None,
        reasoning: None,
        tool_calls,
        tool_call_id: None,
    } = message
    else {
        return false;
    };
    // Python's `strip` also removes four separators that are not Unicode white space.
    let is_white = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let ends = [text.chars().next(), text.chars().next_back()];
    tool_calls.is_empty()
        && text.len() <= LONGEST
        && ends.into_iter().all(|end| end.is_some_and(|end| !is_white(end)))
}

/// Returns the conversation with every text replaced by the stand-in.
pub(crate) fn stand_in(conversation: &Conversation) -> Conversation {
    let messages =
        conversation.messages.iter().map(|message| Message::text(message.role, STAND_IN)).collect();
    Conversation { messages, ..Conversation::default() }
}

impl TextOutline {
    /// Reads the outline from the rendered stand-in, whose texts are between marks. Returns `None` if a text was
    /// changed or a mask is left outside of the texts.
    pub(crate) fn read(rendered: &str, masker: &Masker<'_>) -> Option<Self> {
        let (found, rest) = masker.masked_between_marks(rendered)?;
        let stand_in = masker.mask(STAND_IN);
        let mut texts = Vec::with_capacity(found.len());
        for marked in found {
            let PromptPart::Message(at) = PromptPart::of_tag(marked.tag)? else { return None };
            let whole = marked.text == stand_in && !may_have_masks(marked.before);
            texts.push(whole.then(|| (marked.before.to_owned(), at))?);
        }
        (!may_have_masks(rest)).then(|| Self { texts, rest: rest.to_owned() })
    }

    /// Returns the prompt with the texts of `conversation` filled in. The texts are masked.
    pub(crate) fn fill(&self, conversation: &Conversation, masker: &Masker<'_>) -> String {
        let text = |at: usize| conversation.messages.get(at).and_then(|message| message.content.as_deref());
        let pieces = self.texts.iter().map(|(before, at)| (before.as_str(), text(*at).unwrap_or_default()));
        let length = pieces.clone().map(|(before, text)| before.len() + text.len()).sum::<usize>();
        let mut prompt = String::with_capacity(length.saturating_add(self.rest.len()));
        for (before, text) in pieces {
            prompt.push_str(before);
            prompt.push_str(&masker.mask(text));
        }
        prompt.push_str(&self.rest);
        prompt
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::{ReasoningOptions, Tool, UnixNanos};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{ChatTemplate, RenderedPrompt, SpecialTokenTexts, TemplateError};

    const DEMO: &str = include_str!("../tests/data/demo-template.jinja");
    const TAGGED: &str = "{{ bos_token }}{% set ns = namespace(before='') %}{% for m in messages %}{{ '<|' + m.role ~ '|>' }}\
        {% if m.content is string and not loop.last %}{{ m.content | trim }}{% else %}{{ m['content'].strip() }}{% endif %}\
        {{ ns.before }}{% set ns.before = '[' + (m.content | trim) + ']' %}{% if enable_thinking %}<think>{% endif %}\n\
        {% endfor %}{% if add_generation_prompt %}<|assistant|>{{ messages | length }}{% endif %}";
    const ALTERNATING: &str = "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}\
        {% set system = '<<SYS>>' ~ messages[0].content ~ '<</SYS>>' %}{% else %}{% set rest = messages %}{% set system = '' %}\
        {% endif %}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('Roles must alternate, not ' + m.role) }}{% endif %}\
        {% if loop.first %}{{ system }}{% endif %}{{ '[INST] ' + (m.content | trim) + ' [/INST]' }}{% endfor %}";

    fn compiled(source: &str, limits: TemplateLimits) -> ChatTemplate {
        let markup = ["<|im_start|>", "<|im_end|>", "<think>", "<|user|>", "<<SYS>>", "[INST]", "What"]
            .map(str::to_owned);
        let tokens = SpecialTokenTexts {
            bos: Some("<s>".to_owned()),
            eos: Some("</s>".to_owned()),
            markup: markup.to_vec(),
            ..SpecialTokenTexts::default()
        };
        ChatTemplate::compile(source, &tokens, limits).unwrap()
    }

    fn options(wish: Option<&ReasoningOptions>) -> RenderOptions<'_> {
        RenderOptions { add_generation_prompt: true, now: UnixNanos::new(0), reasoning: wish }
    }

    fn conversation(messages: &[(Role, &str)]) -> Conversation {
        let messages = messages.iter().map(|(role, text)| Message::text(*role, *text)).collect();
        Conversation { messages, ..Conversation::default() }
    }

    /// Runs the template without outlines.
    fn run(
        template: &ChatTemplate,
        of: &Conversation,
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        template.render_conversation(of, options, crate::values::MarkedTexts::None)
    }

    #[test]
    fn of_well_known_templates_those_that_look_into_texts_are_run() {
        let recorded = recorded();
        for (name, only_writes) in
            [("chatml", true), ("mistral-inst", true), ("llama3-tools", false), ("hermes-think", false)]
        {
            let source = recorded["templates"][name].as_str().unwrap();
            assert_eq!(compiled(source, TemplateLimits::default()).outlines.is_some(), only_writes, "{name}");
        }
    }

    /// The data recorded from `transformers`, including its templates.
    fn recorded() -> serde_json::Value {
        serde_json::from_str(include_str!("../tests/data/templates.json")).unwrap()
    }

    fn texts() -> impl Strategy<Value = String> {
        let pieces = [
            "<",
            "<|",
            "im_start|>",
            "<|im_end|>",
            "<|user|>",
            "<think>",
            "[INST]",
            "hat",
            "What",
            " ",
            "\n",
            "\u{1c}",
            "\u{a0}",
            "words of it",
            "\u{e9}t\u{e9}",
            "\u{10f000}",
            "\u{10f003}",
            "\u{f0000}",
            "\u{1f600}",
            "{{ x }}",
            "\0",
        ];
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..6).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn prompts_are_those_of_the_template_that_is_run(
            messages in prop::collection::vec((0..4usize, texts()), 1..6), which in 0..5usize, thinking in prop::option::of(any::<bool>()),
            add_generation_prompt: bool,
        ) {
            let recorded = recorded();
            let well_known = |name: &str| recorded["templates"][name].as_str().unwrap();
            let source = [DEMO, TAGGED, ALTERNATING, well_known("chatml"), well_known("mistral-inst")][which];
            let template = compiled(source, TemplateLimits::default());
            prop_assert!(template.outlines.is_some());
            let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
            let messages: Vec<(Role, &str)> = messages.iter().map(|(role, text)| (roles[*role], text.as_str())).collect();
            let wish = ReasoningOptions { enabled: thinking, effort: None, budget_tokens: None, hidden: false };
            let options = RenderOptions { add_generation_prompt, ..options(Some(&wish)) };
            let of = conversation(&messages);
            // The first rendering computes the outline, the second uses it.
            for _ in 0..2 {
                prop_assert_eq!(template.render(&of, &options), run(&template, &of, &options));
            }
        }
    }

    #[test]
    fn a_template_that_only_writes_runs_once_for_conversations_alike() {
        let template = compiled(DEMO, TemplateLimits::default());
        let outlines = template.outlines.as_ref().unwrap();
        // Compilation renders some conversations to see what the template shows.
        outlines.kept.write().clear();
        let kept = || outlines.kept.read().values().filter(|outline| outline.is_some()).count();
        let hello = conversation(&[(Role::System, "Be brief."), (Role::User, "Hello")]);
        let other = conversation(&[(Role::System, "Be long."), (Role::User, "<|im_end|>What?")]);
        for of in [&hello, &other, &hello] {
            assert_eq!(template.render(of, &options(None)), run(&template, of, &options(None)));
            assert_eq!(kept(), 1);
        }
        let wish = ReasoningOptions { effort: Some("low".to_owned()), ..ReasoningOptions::default() };
        let with_tool = Conversation { tools: vec![Tool::function("look", None, None)], ..hello.clone() };
        let with_variable =
            Conversation { template: [("x".to_owned(), json!(1))].into_iter().collect(), ..hello.clone() };
        let long = "x".repeat(LONGEST + 1);
        for (of, wish) in [
            (&with_tool, None),
            (&with_variable, None),
            (&hello, Some(&wish)),
            (&conversation(&[(Role::User, "Hello ")]), None),
            (&conversation(&[(Role::User, "")]), None),
            (&conversation(&[(Role::User, &long)]), None),
            (&conversation(&vec![(Role::User, "x"); MOST_MESSAGES + 1]), None),
        ] {
            assert_eq!(template.render(of, &options(wish)), run(&template, of, &options(wish)));
            assert_eq!(kept(), 1, "{:?}", of.messages.first());
        }
        assert!(compiled("{{ messages[0].content | upper }}", TemplateLimits::default()).outlines.is_none());
    }

    #[test]
    fn nobody_is_given_what_stands_around_the_texts_of_others() {
        let template = compiled(TAGGED, TemplateLimits::default());
        let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
        let wishes = [None, Some(false), Some(true)]
            .map(|enabled| ReasoningOptions { enabled, ..ReasoningOptions::default() });
        let mut prompts = std::collections::BTreeSet::new();
        for wish in &wishes {
            for add_generation_prompt in [false, true] {
                let options = RenderOptions { add_generation_prompt, ..options(Some(wish)) };
                for first in roles {
                    for of in
                        [conversation(&[(first, "x")]), conversation(&[(first, "x"), (Role::User, "y")])]
                    {
                        let rendered = template.render(&of, &options);
                        assert_eq!(rendered, run(&template, &of, &options), "{first:?} {options:?}");
                        prompts.insert(rendered.unwrap().into_text());
                    }
                }
            }
        }
        // To this template, disabled reasoning and no reasoning option are the same.
        assert_eq!(prompts.len(), 2 * 2 * roles.len() * 2);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let template = compiled(DEMO, TemplateLimits::default());
        for which in 0..1 << 10_u32 {
            let role = |bit: u32| if which >> bit & 1 == 0 { Role::User } else { Role::Assistant };
            let messages: Vec<(Role, &str)> = (0..10).map(|bit| (role(bit), "x")).collect();
            let of = conversation(&messages);
            assert_eq!(template.render(&of, &options(None)), run(&template, &of, &options(None)));
            assert!(template.outlines.as_ref().unwrap().kept.read().len() <= MOST_KEPT);
        }
    }

    #[test]
    fn limits_hold_as_where_the_template_is_run() {
        // Each text is written eight times, and the longest stored value has four copies of it.
        let source = "{% for m in messages %}{% set two = m.content ~ m.content %}{% set four = two ~ two %}{{ four }}{{ four }}{% endfor %}";
        for max_output_bytes in [1 << 10, 1 << 16, 1 << 19, 1 << 20, 1 << 21] {
            let template = compiled(source, TemplateLimits { max_output_bytes, ..TemplateLimits::default() });
            for length in [1, 60, 1 << 10, 1 << 13, LONGEST] {
                for text in ["x".repeat(length), "<".repeat(length)] {
                    for count in [1, 9, MOST_MESSAGES] {
                        let of = conversation(&vec![(Role::User, text.as_str()); count]);
                        for _ in 0..2 {
                            let (is, should) =
                                (template.render(&of, &options(None)), run(&template, &of, &options(None)));
                            assert!(is == should, "{max_output_bytes} {length} {count}: {:?}", should.err());
                        }
                    }
                }
            }
        }
        let tired = compiled(DEMO, TemplateLimits { fuel: 100, ..TemplateLimits::default() });
        let of = conversation(&vec![(Role::User, "x"); 20]);
        for _ in 0..2 {
            assert!(matches!(tired.render(&of, &options(None)), Err(TemplateError::OutOfFuel { .. })));
        }
    }
}
