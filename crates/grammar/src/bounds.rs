//! Limits on the size of a form, and on the cost of compiling and following it. Every limit has its unit in its name.

use std::time::Duration;

/// Levels of nesting in a schema, a grammar or a regular expression.
pub(crate) const MAX_DEPTH_LEVELS: usize = 64;
/// Sub-schemas in total.
pub(crate) const MAX_SCHEMA_NODES: usize = 20_000;
/// Properties of one object.
pub(crate) const MAX_OBJECT_PROPERTIES: usize = 5_000;
/// Pairs of properties of the same object, over all objects. Compiling takes about 40 ns for each pair and cannot be
/// stopped in between.
pub(crate) const MAX_PROPERTY_PAIRS: u64 = 1_000_000;
/// Patterns of property names in one object. They are compared with each other.
pub(crate) const MAX_NAME_PATTERNS: usize = 8;
/// Regular expressions in total.
pub(crate) const MAX_PATTERNS: usize = 500;
/// Length of one regular expression.
pub(crate) const MAX_PATTERN_BYTES: usize = 8 << 10;
/// Copies of its parts that a regular expression may unfold to. Nested repetitions multiply.
pub(crate) const MAX_PATTERN_REPEATS: u64 = 20_000;
/// String length or item count that a schema may require.
pub(crate) const MAX_COUNTED: u64 = 100_000;
/// Texts of a choice.
pub(crate) const MAX_CHOICES: usize = 10_000;
/// Tags of a tagged form, and also its triggers.
pub(crate) const MAX_TAGS: usize = 128;
/// Units of work on regular expressions during compilation. llguidance does about 50,000 per millisecond.
pub(crate) const COMPILE_FUEL_UNITS: u64 = 1_500_000;
/// Units of work on regular expressions for one mask. llguidance does about 14,000 per millisecond.
pub(crate) const MASK_FUEL_UNITS: u64 = 100_000;
/// Parser items for one mask. The parser does about 20,000 per millisecond.
pub(crate) const MASK_ITEMS: usize = 50_000;
/// CPU time for one token of one answer, either to accept it or to compute a mask. It is the last limit, after those on
/// units of work.
pub(crate) const STEP_TIME: Duration = Duration::from_millis(200);
/// Lexer states that one answer may create, at 1 to 2 KiB each.
pub(crate) const MAX_LEXER_STATES: usize = 16_000;
/// Size of a regular expression's automaton: its transitions here, then the NFA state sets of its states, and the NFA
/// itself. A larger expression is left to llguidance.
pub(crate) const AUTOMATON_BYTES: usize = 2 << 20;
/// See [`AUTOMATON_BYTES`].
pub(crate) const AUTOMATON_SET_BYTES: usize = 256 << 10;
/// See [`AUTOMATON_BYTES`].
pub(crate) const AUTOMATON_NFA_BYTES: usize = 256 << 10;
/// Nodes in the reduced vocabulary of an automaton. If there are more, the vocabulary itself is walked.
pub(crate) const AUTOMATON_WORD_NODES: usize = 100_000;
/// Masks kept for one automaton.
pub(crate) const KEPT_MASK_BYTES: usize = 2 << 20;
/// Symbols of a compiled grammar.
pub(crate) const MAX_GRAMMAR_SYMBOLS: usize = 200_000;
/// Stack of a compiling thread. Nested forms are walked by recursion.
pub(crate) const STACK_BYTES: usize = 64 << 20;
/// Threads that compile at once, including those that no caller waits for any more. On a machine with fewer processors
/// there is one per processor, but at least two.
pub(crate) const MAX_COMPILING_THREADS: usize = 4;
/// Forms of one tenant that wait for a thread.
pub(crate) const MAX_TENANT_WAITS: usize = 32;
/// How long a caller waits for a free thread.
pub(crate) const MOST_WAIT: Duration = Duration::from_secs(2);
/// On a busy machine a caller waits for at most this many times the compile time.
pub(crate) const SLOWED_TIMES: u32 = 10;
/// The shortest wait before the thread's CPU time is checked again.
pub(crate) const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Compiled forms kept in the cache.
pub(crate) const CACHE_FORMS: usize = 256;
/// Memory of all compiled forms in the cache.
pub(crate) const CACHE_BYTES: usize = 128 << 20;
/// Digits of a number's mantissa if the form does not limit them: as many as a double can distinguish.
pub(crate) const NUMBER_DIGITS: u32 = 15;
/// Digits of a number's exponent. With this limit every number is a finite double.
pub(crate) const EXPONENT_DIGITS: u32 = 2;
/// White space between two parts of a JSON text: a space, or a line break with its indent.
pub(crate) const WHITE_SPACE: &str = r"\x20|\r?\n[\x20\t]{0,40}";

/// Most of a vocabulary: words, with and without a leading space. If an answer may continue with any word, as in most
/// regular expressions, each of these groups is allowed at once. The groups do not overlap, and each lies within a
/// class that llguidance distinguishes by itself.
pub(crate) const WORDS: [&str; 4] = ["[a-z]{1,10}", " [a-z]{1,9}", "[a-z]{11,30}", " [a-z]{10,29}"];

/// Limits for one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormLimits {
    /// Size of its text, in bytes.
    pub form_bytes: usize,
    /// Size of the compiled form, in bytes.
    pub compiled_bytes: usize,
    /// CPU time that compiling may take. If the system does not report it (Linux does), the time that a caller waits.
    pub compile_time: Duration,
}

impl Default for FormLimits {
    fn default() -> Self {
        Self { form_bytes: 256 << 10, compiled_bytes: 32 << 20, compile_time: Duration::from_millis(100) }
    }
}
