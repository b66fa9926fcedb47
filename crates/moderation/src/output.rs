//! The rules on what models write: the text of answers, reasoning, and tool calls. Must not know calls or dialects.

use std::collections::BTreeSet;
use std::sync::Arc;

mod arguments;
mod filter;
mod pattern_text;
mod patterns;
mod redactor;
mod span;
mod text_rules;
mod word_text;
mod words;

pub(crate) use arguments::{ArgumentEdit, edit_arguments};
pub use arguments::{ScreenedText, screen_arguments, screen_text};
pub use filter::OutputFilter;
pub use redactor::PiiRedactor;
pub(crate) use span::MatchSpan;
pub use text_rules::TextRules;

use crate::{JudgesByName, RuleConfig, RuleDescription, RuleError};

/// The rules on everything that a model writes. Must not know which call they apply to.
#[derive(Debug, Default)]
pub struct OutputRules {
    /// Every rule in the list.
    rules: Vec<RuleDescription>,
    /// On the text of answers.
    pub answer: Option<Arc<TextRules>>,
    /// On reasoning.
    pub reasoning: Option<Arc<TextRules>>,
    /// On names and arguments of tool calls.
    pub tool_calls: Option<Arc<TextRules>>,
}

impl OutputRules {
    /// Compiles the rules that check output. `None` if there are none.
    pub(crate) fn compile(
        configs: &[RuleConfig],
        judges: &JudgesByName,
        errors: &mut Vec<RuleError>,
    ) -> Option<Self> {
        if !configs.iter().any(|config| config.applies_to.is_output()) {
            return None;
        }
        let mut compiled: Vec<(BTreeSet<usize>, Option<Arc<TextRules>>)> = Vec::new();
        let mut of = |applies: &dyn Fn(&RuleConfig) -> bool| {
            let used = configs.iter().enumerate().filter(|(_, config)| applies(config));
            let used: BTreeSet<usize> = used.map(|(rule, _)| rule).collect();
            if let Some((_, rules)) = compiled.iter().find(|(known, _)| *known == used) {
                return rules.clone();
            }
            let rules = TextRules::compile(configs, &used, judges, errors).map(Arc::new);
            compiled.push((used, rules.clone()));
            rules
        };
        let answer = of(&|config| config.applies_to.answer);
        let reasoning = of(&|config| config.applies_to.reasoning);
        let tool_calls = of(&|config| config.applies_to.tool_calls);
        let rules = configs.iter().map(RuleDescription::of);
        Some(Self { rules: rules.collect(), answer, reasoning, tool_calls })
    }

    /// What a rule is and does. `None` if the index is of no rule.
    pub fn rule(&self, index: usize) -> Option<&RuleDescription> {
        self.rules.get(index)
    }
}
