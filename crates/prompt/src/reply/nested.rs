//! Reads a call that is a name and a tag for each argument, in which values have tags of their own: the members of an
//! object by their names, and the items of an array. Must not know the marks around calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::coerce;
use crate::family::NestedLayout;
use crate::json;
use crate::offered::OfferedTools;

use super::piece::CallDraft;
use super::step::{CallStep, MOST_HEAD_BYTES};

/// The maximum nesting depth that is read.
const MAX_DEPTH: u32 = 64;

/// The schema of a tool without one.
static NO_SCHEMA: Value = Value::Null;

/// The reader. It searches for the end of the call. The arguments before it are then parsed as a whole.
#[derive(Debug)]
pub(super) struct NestedCall {
    form: NestedLayout,
    offered: Arc<OfferedTools>,
    /// The name that is being read.
    head: String,
    /// The arguments as written.
    text: String,
}

impl NestedCall {
    pub(super) fn new(form: NestedLayout, offered: &Arc<OfferedTools>) -> Self {
        Self { form, offered: Arc::clone(offered), head: String::new(), text: String::new() }
    }

    pub(super) fn step(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        if draft.name.is_none() {
            return self.step_name(c, draft);
        }
        self.text.push(c);
        let Some(written) = self.written() else { return CallStep::More };
        let schema = self.offered.schema(draft.name.as_deref().unwrap_or(""));
        let mut reader = NestedReader { rest: written, form: self.form, root: schema.unwrap_or(&NO_SCHEMA) };
        let Some(members) = reader.members(schema, None, 0) else { return CallStep::Off };
        draft.arguments = object(members);
        draft.whole = true;
        CallStep::Whole
    }

    fn step_name(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        self.head.push(c);
        let Some(name) = self.head.strip_suffix(self.form.name_end) else {
            return if self.head.len() > MOST_HEAD_BYTES { CallStep::Off } else { CallStep::More };
        };
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return CallStep::Off;
        }
        draft.name = Some(name.to_owned());
        CallStep::More
    }

    /// Returns the arguments without the tag that ends the call. `None` before that tag.
    fn written(&self) -> Option<&str> {
        self.text.strip_suffix(self.form.end)?.trim_end().strip_suffix(self.form.mark)
    }
}

/// A tag with its name.
enum NestedTag<'t> {
    Open(&'t str),
    Close(&'t str),
}

struct NestedReader<'t> {
    rest: &'t str,
    form: NestedLayout,
    /// The document that references in schemas point into.
    root: &'t Value,
}

impl<'t> NestedReader<'t> {
    /// Reads a tag. White space may precede it and may separate it from its mark.
    fn tag(&mut self) -> Option<NestedTag<'t>> {
        let tag = self.rest.trim_start().strip_prefix(self.form.mark)?;
        let (name, rest) = tag.trim_start().strip_prefix('<')?.split_once('>')?;
        self.rest = rest;
        let tag = name.strip_prefix('/').map_or(NestedTag::Open(name), NestedTag::Close);
        (!name.contains('<')).then_some(tag)
    }

    /// Reads tags with their values up to the tag that closes `within`, or up to the end of the text.
    fn members(
        &mut self,
        schema: Option<&'t Value>,
        within: Option<&str>,
        depth: u32,
    ) -> Option<Vec<(&'t str, String)>> {
        let depth = depth.checked_add(1).filter(|depth| *depth < MAX_DEPTH)?;
        let mut members = Vec::new();
        while within.is_some() || !self.rest.trim_start().is_empty() {
            match self.tag()? {
                NestedTag::Close(name) => return (Some(name) == within).then_some(members),
                NestedTag::Open(name) => {
                    let item = || coerce::item(schema?, members.len(), self.root);
                    let property = schema.and_then(|schema| coerce::property(schema, name, self.root));
                    let schema = property.or_else(|| if name == self.form.item { item() } else { None });
                    let value = self.value(name, schema, depth)?;
                    members.push((name, value));
                }
            }
        }
        Some(members)
    }

    /// Reads the value after the tag that opens `name`, and the tag that closes it.
    fn value(&mut self, name: &str, schema: Option<&'t Value>, depth: u32) -> Option<String> {
        let (text, after) = self.rest.split_at_checked(self.rest.find(self.form.mark)?)?;
        let types = schema.and_then(|schema| coerce::types(schema, self.root));
        self.rest = after;
        match self.tag()? {
            NestedTag::Close(closed) => (closed == name).then(|| leaf(text, types.as_deref())),
            NestedTag::Open(_) if text.trim_start().is_empty() => {
                self.rest = after;
                let members = self.members(schema, Some(name), depth)?;
                let may_be = |name: &str| types.as_ref().is_none_or(|types| types.contains(&name));
                let items = members.iter().all(|(name, _)| *name == self.form.item);
                match items && (may_be("array") || !may_be("object")) {
                    true => Some(array(members.into_iter().map(|(_, value)| value))),
                    false => Some(object(members)),
                }
            }
            NestedTag::Open(_) => None,
        }
    }
}

/// Returns a value without tags of its own as JSON.
fn leaf(text: &str, types: Option<&[&'static str]>) -> String {
    let is = |name: &str| types.is_some_and(|types| types.contains(&name));
    if text.trim_start().is_empty() && !is("string") {
        if is("array") {
            return "[]".to_owned();
        }
        if is("object") {
            return "{}".to_owned();
        }
    }
    coerce::value(text, types)
}

fn array(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// Returns members as an object. Several values of one name are an array.
fn object(members: Vec<(&str, String)>) -> String {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut grouped: Vec<(&str, Vec<String>)> = Vec::new();
    for (name, value) in members {
        let place = *places.entry(name).or_insert(grouped.len());
        match grouped.get_mut(place) {
            Some((_, values)) => values.push(value),
            None => grouped.push((name, vec![value])),
        }
    }
    let members = grouped.into_iter().map(|(name, mut values)| {
        let value =
            if values.len() == 1 { values.pop().unwrap_or_default() } else { array(values.into_iter()) };
        format!("{}: {value}", json::quoted(name))
    });
    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
}
