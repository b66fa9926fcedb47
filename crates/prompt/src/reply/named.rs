//! Reads a call that is a name, a mark and its arguments as a JSON object. Must not know which tools exist.

use crate::family::{NamedLayout, ObjectLayout};

use super::object::ObjectCall;
use super::piece::CallDraft;
use super::span::{BracketSpan, is_space};
use super::step::{CallStep, MOST_HEAD_BYTES};

/// The reader. All text before the first brace is the head.
#[derive(Debug)]
pub(super) struct NamedCall {
    form: NamedLayout,
    /// A mark that ends a call which never got its arguments.
    end: Option<&'static str>,
    head: String,
    arguments: Option<BracketSpan>,
    list: Option<ObjectCall>,
}

impl NamedCall {
    pub(super) fn new(form: &NamedLayout, end: Option<&'static str>) -> Self {
        Self { form: *form, end, head: String::new(), arguments: None, list: None }
    }

    pub(super) fn in_list(&self) -> bool {
        self.list.as_ref().is_some_and(ObjectCall::in_list)
    }

    pub(super) fn step(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        if let Some(list) = &mut self.list {
            return list.step(c, draft);
        }
        if let Some(span) = &mut self.arguments {
            draft.arguments.push(c);
            draft.whole = span.step(c);
            return if draft.whole { CallStep::Whole } else { CallStep::More };
        }
        if self.form.or_array && c == '[' && self.head.chars().all(is_space) {
            let mut list = ObjectCall::new(ObjectLayout::ARRAY, true);
            let step = list.step(c, draft);
            self.list = Some(list);
            return step;
        }
        if c != '{' {
            self.head.push(c);
            let ended = self.end.is_some_and(|end| self.head.ends_with(end));
            return if ended || self.head.len() > MOST_HEAD_BYTES { CallStep::Off } else { CallStep::More };
        }
        if !self.read_head(draft) {
            return CallStep::Off;
        }
        draft.arguments = "{".to_owned();
        self.arguments = Some(BracketSpan::open());
        CallStep::More
    }

    /// Reads name and id from the text before the arguments. Returns `false` if it is not the head of a call.
    fn read_head(&self, draft: &mut CallDraft) -> bool {
        let head = self.head.trim();
        let head = head.strip_prefix(self.form.before).unwrap_or(head);
        let ends = self.form.after.iter().map(|after| after.trim()).filter(|after| !after.is_empty());
        let cut = ends.into_iter().find_map(|after| head.split_once(after));
        let (mut name, rest) = cut.unwrap_or((head, ""));
        if !rest.trim().is_empty() {
            return false;
        }
        name = name.trim();
        if self.form.in_id {
            // `functions.NAME:0` is the model's id for the call. It contains the call's index among the model's calls.
            let whole = self.head.trim();
            let whole =
                self.form.after.iter().find_map(|after| whole.split_once(after)).map_or(whole, |cut| cut.0);
            if let Some((before, number)) = name.rsplit_once(':')
                && !number.is_empty()
                && number.bytes().all(|digit| digit.is_ascii_digit())
            {
                name = before;
                draft.id = Some(whole.trim().to_owned());
            }
        }
        if !self.form.id.is_empty()
            && let Some((before, id)) = name.split_once(self.form.id)
        {
            name = before.trim();
            draft.id = Some(id.trim().to_owned()).filter(|id| !id.is_empty());
        }
        draft.name = Some(name.to_owned());
        !name.is_empty() && !name.contains(char::is_whitespace)
    }
}
