//! How large a form may be, and what compiling and following it may take. Every bound has its unit in its name.

use std::time::Duration;

/// Levels of nesting in a schema, a grammar or a regular expression.
pub(crate) const MAX_DEPTH_LEVELS: usize = 64;
/// Sub-schemas in all.
pub(crate) const MAX_SCHEMA_NODES: usize = 20_000;
/// Properties of one object.
pub(crate) const MAX_OBJECT_PROPERTIES: usize = 5_000;
/// Pairs of properties of the same object, over all objects: compiling takes about 40 ns for each, and cannot be stopped meanwhile.
pub(crate) const MAX_PROPERTY_PAIRS: u64 = 1_000_000;
/// Patterns of property names in one object: they are compared with each other.
pub(crate) const MAX_NAME_PATTERNS: usize = 8;
/// Regular expressions in all.
pub(crate) const MAX_PATTERNS: usize = 500;
/// One regular expression.
pub(crate) const MAX_PATTERN_BYTES: usize = 8 << 10;
/// What a regular expression repeats at most, all its repetitions multiplied.
pub(crate) const MAX_PATTERN_REPEATS: u64 = 20_000;
/// Length that a schema may ask of a string, or count that it may ask of a list.
pub(crate) const MAX_COUNTED: u64 = 100_000;
/// Texts to choose from.
pub(crate) const MAX_CHOICES: usize = 10_000;
/// Tags of a free text, and texts that they begin with.
pub(crate) const MAX_TAGS: usize = 128;
/// Units of work on regular expressions while compiling: llguidance does about 50,000 in a millisecond.
pub(crate) const COMPILE_FUEL_UNITS: u64 = 1_500_000;
/// The same for one mask: about 14,000 in a millisecond.
pub(crate) const MASK_FUEL_UNITS: u64 = 100_000;
/// Items of the parser for one mask: about 20,000 in a millisecond.
pub(crate) const MASK_ITEMS: usize = 50_000;
/// What the parser may compute for one token of one answer: taking it, or finding what may follow. Processor time; the last bound,
/// behind those of its work.
pub(crate) const STEP_TIME: Duration = Duration::from_millis(200);
/// States that the lexer of one answer may come to, of 1 to 2 KiB.
pub(crate) const MAX_LEXER_STATES: usize = 16_000;
/// The automaton of a regular expression: its transitions, the sets of states that its states stand for, and the expression unfolded.
/// What needs more is left to llguidance.
pub(crate) const AUTOMATON_BYTES: usize = 2 << 20;
/// See [`AUTOMATON_BYTES`].
pub(crate) const AUTOMATON_SET_BYTES: usize = 256 << 10;
/// See [`AUTOMATON_BYTES`].
pub(crate) const AUTOMATON_NFA_BYTES: usize = 256 << 10;
/// Words that an automaton tells apart, and what they begin with; where there are more, the vocabulary itself is walked.
pub(crate) const AUTOMATON_WORD_NODES: usize = 100_000;
/// Masks that are kept of one automaton.
pub(crate) const KEPT_MASK_BYTES: usize = 2 << 20;
/// Symbols of a compiled grammar.
pub(crate) const MAX_GRAMMAR_SYMBOLS: usize = 200_000;
/// The stack of a thread that compiles: what is nested is walked by recursion.
pub(crate) const STACK_BYTES: usize = 64 << 20;
/// Threads that compile at once, those included that no caller waits for any more; on a machine with fewer processors, one for each.
pub(crate) const MAX_COMPILING_THREADS: usize = 4;
/// Forms of one tenant that wait for a thread.
pub(crate) const MAX_TENANT_WAITS: usize = 32;
/// How long somebody waits for one of them to be free.
pub(crate) const MOST_WAIT: Duration = Duration::from_secs(2);
/// On a machine that is busy with other things a form is waited for so many times as long as it may compute.
pub(crate) const SLOWED_TIMES: u32 = 10;
/// The shortest such wait before it is looked again.
pub(crate) const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Compiled forms that are kept.
pub(crate) const CACHE_FORMS: usize = 256;
/// What they may take in all.
pub(crate) const CACHE_BYTES: usize = 128 << 20;
/// Digits of a number's mantissa where a form leaves their number open: as many as a double keeps apart.
pub(crate) const NUMBER_DIGITS: u32 = 15;
/// Digits of its exponent: with them every number is a finite double.
pub(crate) const EXPONENT_DIGITS: u32 = 2;
/// White space between two parts of a JSON text: a space, or a line's end and its indent.
pub(crate) const WHITE_SPACE: &str = r"\x20|\r?\n[\x20\t]{0,40}";

/// Most of a vocabulary: words, without and with a space before them. Where an answer may go on with any word, as within most regular
/// expressions, all of a kind are allowed at once and not each by itself. None of these overlaps another, and each lies within a kind
/// that llguidance tells apart by itself.
pub(crate) const WORDS: [&str; 4] = ["[a-z]{1,10}", " [a-z]{1,9}", "[a-z]{11,30}", " [a-z]{10,29}"];

/// What one form may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Its text, in bytes.
    pub form_bytes: usize,
    /// What the compiled form takes, in bytes.
    pub compiled_bytes: usize,
    /// How long it may compute. Where that is not known (it is on Linux), how long somebody waits for it.
    pub compile_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { form_bytes: 256 << 10, compiled_bytes: 32 << 20, compile_time: Duration::from_millis(100) }
    }
}
