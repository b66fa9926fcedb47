//! An answer in messages that another server goes on with: its text, and what it took until it broke. Must not know servers.

use headrace_domain::{ReplyEvent, Usage};

use crate::refused::Why;

/// Of one call whose answer is text.
#[derive(Default)]
pub(super) struct Resume {
    /// All text that was said.
    text: String,
    /// More was said than text, or its end.
    beyond_text: bool,
    /// What broke first.
    broke: Option<Why>,
    /// What those took who have broken off.
    before: Option<Before>,
    /// White space that was said, and not told to who goes on.
    kept_back: String,
}

struct Before {
    usage: Usage,
    /// The prompt's tokens are the upstream's word.
    reported: bool,
    /// Tokens of the answer, as they were counted here.
    generated: u64,
}

/// What there is of an answer, for who goes on with it.
pub(crate) struct Begun {
    pub(crate) text: String,
    /// Tokens of it, about.
    pub(crate) generated: u64,
}

impl Resume {
    /// Takes in what was said, and takes out of it what was said before.
    pub(super) fn take(&mut self, events: &mut [ReplyEvent]) {
        for event in events {
            let ReplyEvent::Text { text, .. } = event else {
                self.beyond_text = true;
                continue;
            };
            while let (Some(kept), Some(next)) = (self.kept_back.chars().next(), text.chars().next()) {
                if kept != next {
                    self.kept_back.clear();
                    break;
                }
                self.kept_back.remove(0);
                text.remove(0);
            }
            self.text.push_str(text);
        }
    }

    /// Whether there is text to go on with.
    pub(super) fn may_go_on(&self) -> bool {
        !self.beyond_text && !self.text.trim_end().is_empty()
    }

    /// Whether something was said.
    pub(super) fn has_begun(&self) -> bool {
        self.beyond_text || !self.text.is_empty()
    }

    /// It broke off. What is told, should nobody go on, is what broke first.
    pub(super) fn broke(&mut self, why: Why) -> Why {
        self.broke.get_or_insert(why).clone()
    }

    /// Whether somebody else broke off before.
    pub(super) fn is_resumed(&self) -> bool {
        self.before.is_some()
    }

    /// Tokens that those generated who broke off before.
    pub(super) fn generated(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.generated)
    }

    /// What there is. A server may refuse a turn that ends with white space, and begins the next text with it then.
    pub(super) fn begun(&self, generated: u64) -> Option<Begun> {
        self.may_go_on().then(|| Begun {
            text: self.text.trim_end().to_owned(),
            generated: self.generated().saturating_add(generated),
        })
    }

    /// Somebody goes on, after this usage of all before, of which so many tokens were counted here.
    pub(super) fn goes_on(&mut self, usage: Usage, reported: bool, generated: u64) {
        let reported = reported || self.before.as_ref().is_some_and(|before| before.reported);
        self.before = Some(Before { usage, reported, generated });
        self.kept_back = self.text.get(self.text.trim_end().len()..).unwrap_or_default().to_owned();
    }

    /// What the answer took with all its parts: the prompt once, each part's words once.
    pub(super) fn usage(&self, now: Usage, reported: bool) -> Usage {
        let Some(Before { usage: before, reported: known, .. }) = &self.before else { return now };
        let (output, reasoning) =
            (before.output.saturating_add(now.output), before.reasoning.saturating_add(now.reasoning));
        if reported && !known {
            // The prompt of who went on had the words that are counted already.
            let input = now.input.saturating_sub(before.completion_tokens());
            return Usage { input, output, reasoning, ..now };
        }
        Usage { output, reasoning, ..*before }
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::Code;

    use super::*;

    fn text(text: &str) -> ReplyEvent {
        ReplyEvent::Text { choice: 0, text: text.to_owned(), ids: Vec::new(), logprobs: Vec::new() }
    }

    fn said(resume: &mut Resume, texts: &[&str]) -> String {
        let mut events: Vec<_> = texts.iter().map(|said| text(said)).collect();
        resume.take(&mut events);
        let told = |event: &ReplyEvent| match event {
            ReplyEvent::Text { text, .. } => text.clone(),
            _ => String::new(),
        };
        events.iter().map(told).collect()
    }

    #[test]
    fn white_space_at_a_break_is_said_once() {
        for (before, behind, expected) in [
            ("so \n", &[" \n", "far"][..], "so \nfar"),
            ("so \n", &[" ", "\nfar"], "so \nfar"),
            ("so ", &["far"], "so far"),
            ("so", &[" far"], "so far"),
            ("so ", &["  far"], "so  far"),
            ("so ", &["\nfar  "], "so \nfar  "),
        ] {
            let mut resume = Resume::default();
            let first = said(&mut resume, &[before]);
            assert_eq!(resume.begun(3).unwrap().text, "so");
            resume.goes_on(Usage::default(), false, 3);
            assert_eq!(first + &said(&mut resume, behind), expected);
            assert_eq!(resume.begun(2).unwrap().text, expected.trim_end());
            assert_eq!(resume.begun(2).unwrap().generated, 5);
        }
    }

    #[test]
    fn only_text_that_has_begun_and_not_ended_goes_on() {
        let mut resume = Resume::default();
        assert!(!resume.may_go_on() && !resume.has_begun());
        said(&mut resume, &[" \n"]);
        assert!(!resume.may_go_on() && resume.has_begun());
        said(&mut resume, &["a"]);
        assert!(resume.may_go_on());
        resume.take(&mut [ReplyEvent::RedactedReasoning { choice: 0, data: "x".to_owned() }]);
        assert!(!resume.may_go_on() && resume.begun(1).is_none());
        let why = |message: &str| Why::new(Code::UpstreamFailed, message);
        assert_eq!(resume.broke(why("first")).message, "first");
        assert_eq!(resume.broke(why("second")).message, "first");
    }

    #[test]
    fn each_token_counts_once() {
        let usage = |input, output| Usage { input, output, ..Usage::default() };
        let told = |usage: Usage| (usage.input, usage.cached_input, usage.output);
        let mut resume = Resume::default();
        assert_eq!(told(resume.usage(usage(5, 2), true)), (5, 0, 2));
        // Nobody has reported the prompt: 20 is a guess.
        resume.goes_on(usage(20, 4), false, 4);
        assert_eq!(told(resume.usage(usage(20, 0), false)), (20, 0, 4));
        let now = Usage { cached_input: 8, ..usage(10, 3) };
        assert_eq!(told(resume.usage(now, true)), (6, 8, 7));
        // Somebody has, and a second one goes on.
        resume.goes_on(usage(15, 7), true, 7);
        assert_eq!(told(resume.usage(usage(99, 2), true)), (15, 0, 9));
        assert_eq!((resume.generated(), resume.is_resumed()), (7, true));
    }
}
