//! The parts of a row of the table of families: marks, notations and the text that templates write around calls. Must
//! not know the rows.

/// The way in which a family writes calls.
#[derive(Debug)]
pub(crate) struct FamilyRow {
    /// Marks around all calls of an answer together. A call without them is still a call.
    pub(crate) section: Option<(&'static str, &'static str)>,
    /// The marks that open a call. Templates write the first one. A mark that ends with a bracket opens a list.
    pub(crate) open: &'static [&'static str],
    /// Characters that begin a call without an opening mark, at the beginning of a line.
    pub(crate) bare: &'static [char],
    /// Marks that may follow the text of a call, in this order and apart from white space. Each of them may be missing.
    pub(crate) close: &'static [&'static str],
    /// The exact text around calls in templates.
    pub(crate) written: CallMarkup,
    /// Whether an opening mark ends the reasoning, because the mark is not a word that a model would write in its
    /// reasoning.
    pub(crate) ends_thought: bool,
    /// The marks around the answer, which are not part of it.
    pub(crate) answer: Option<AnswerMarks>,
    pub(crate) body: CallLayout,
}

impl FamilyRow {
    /// Returns every text of the template that occurs in a call or around the answer.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &'static str> {
        let body: Vec<&'static str> = match &self.body {
            CallLayout::Object(_) | CallLayout::Pythonic | CallLayout::Lines => Vec::new(),
            CallLayout::Named(named) => {
                [named.before, named.id].into_iter().chain(named.after.iter().copied()).collect()
            }
            CallLayout::Tagged(tagged) => {
                let name = [tagged.name_end, tagged.name_rest];
                let tags = [tagged.key, tagged.key_end, tagged.value, tagged.value_end, tagged.end];
                name.into_iter().chain(tags).collect()
            }
            CallLayout::Nested(nested) => vec![nested.mark],
            CallLayout::Gemma { quote } => vec![*quote],
        };
        let section = self.section.into_iter().flat_map(|(open, close)| [open, close]);
        let answer = self.answer.into_iter().flat_map(|answer| answer.open.iter().chain(answer.close));
        section.chain(self.open.iter().chain(self.close).chain(answer).copied()).chain(body)
    }
}

/// The marks around an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerMarks {
    pub(crate) open: &'static [&'static str],
    pub(crate) close: &'static [&'static str],
    /// Whether an answer may contain the marks as words. If so, the first mark counts only at the beginning of an
    /// answer and the last one only at its end, and the line breaks beside them belong to them. Otherwise the marks
    /// are left out everywhere, and only they.
    pub(crate) are_words: bool,
}

/// The text that templates write around calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallMarkup {
    /// Before and after all calls.
    pub(crate) all: (&'static str, &'static str),
    /// Before and after each call.
    pub(crate) each: (&'static str, &'static str),
    /// Between two calls.
    pub(crate) between: &'static str,
}

/// The way in which a call is written between its marks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallLayout {
    /// A JSON object.
    Object(ObjectLayout),
    /// A name, then the arguments as a JSON object.
    Named(NamedLayout),
    /// A name, then a tag for each argument.
    Tagged(TagLayout),
    /// A name, then a tag for each argument and for each value within an argument.
    Nested(NestedLayout),
    /// Calls as Python writes them, in a list.
    Pythonic,
    /// Calls as Python writes them, each in a line of its own, up to the closing mark.
    Lines,
    /// `call:NAME{KEY:VALUE}`, with texts between these quotes.
    Gemma { quote: &'static str },
}

/// A JSON object of a name and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectLayout {
    /// The key of the name. Empty if the name itself is the key of the arguments.
    pub(crate) name: &'static str,
    /// The key of the arguments.
    pub(crate) arguments: &'static str,
    /// The key of the call's number, which templates write before the name. Empty if there is none.
    pub(crate) number: &'static str,
    /// Whether an array of such objects is also accepted.
    pub(crate) array: bool,
}

impl ObjectLayout {
    /// The most common object: `{"name": …, "arguments": …}`.
    pub(crate) const PLAIN: Self = Self { name: "name", arguments: "arguments", number: "", array: false };
    /// An array of the most common objects.
    pub(crate) const ARRAY: Self = Self { array: true, ..Self::PLAIN };
}

/// A name between marks, then a JSON object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedLayout {
    /// The text before the name.
    pub(crate) before: &'static str,
    /// The marks that end the name. Templates write the first one. An opening brace always ends the name.
    pub(crate) after: &'static [&'static str],
    /// The mark that begins an id after the name.
    pub(crate) id: &'static str,
    /// Whether the name is part of an id: `functions.NAME:0`.
    pub(crate) in_id: bool,
    /// Whether an array of objects is accepted in place of a name.
    pub(crate) or_array: bool,
}

impl NamedLayout {
    /// A name without marks.
    pub(crate) const PLAIN: Self = Self { before: "", after: &[], id: "", in_id: false, or_array: false };
}

/// A name, then a tag for each argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TagLayout {
    /// The mark that ends the name. If it is a tag of its own or a line break, the next tag ends the name, too.
    pub(crate) name_end: &'static str,
    /// The mark that ends the text between the name and the first argument. Empty if there is no such text.
    pub(crate) name_rest: &'static str,
    /// The mark that opens an argument, before its key.
    pub(crate) key: &'static str,
    /// The mark that ends the key.
    pub(crate) key_end: &'static str,
    /// The mark that opens the value. Empty if there is none.
    pub(crate) value: &'static str,
    pub(crate) value_end: &'static str,
    /// The mark that ends the call.
    pub(crate) end: &'static str,
    /// Whether templates write a line break after each tag. If so, line breaks around a value are not part of the
    /// value.
    pub(crate) lines: bool,
    /// The text that templates write between a tag and the next one.
    pub(crate) apart: &'static str,
    /// The way in which the tag of an argument states the type of its value.
    pub(crate) types: TypeAttribute,
}

impl TagLayout {
    /// Whether names and keys are attributes, in which `&quot;` and `&amp;` are a quote and an ampersand.
    pub(crate) fn has_attributes(&self) -> bool {
        self.types == TypeAttribute::Name
    }
}

/// The attribute that states the type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypeAttribute {
    /// There is none: the tool's schema determines the type.
    None,
    /// `string="true"` for a text, `string="false"` for JSON.
    IsString,
    /// `type="string"` for a text, `type="number"` and so on for JSON.
    Name,
}

/// A name, then a tag for each argument and for each value within an argument: `MARK<KEY>VALUEMARK</KEY>`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NestedLayout {
    /// The mark before each tag.
    pub(crate) mark: &'static str,
    /// The text that ends the name.
    pub(crate) name_end: &'static str,
    /// The tag that ends the call.
    pub(crate) end: &'static str,
    /// The name of the tag of an array's item.
    pub(crate) item: &'static str,
}
