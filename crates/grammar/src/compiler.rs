//! Compiles forms to grammars for one vocabulary, within limits of size, time and memory. A form in the cache is not
//! compiled again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use headrace_domain::ResponseFormat;
use headrace_engine_api::{FormThought, SharedGrammar};
use headrace_tokenizer::Tokenizer;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{CancellationHandle, ParserFactory};
use parking_lot::Mutex;

use crate::automaton::Automaton;
use crate::bounds::{
    COMPILE_FUEL_UNITS, FormLimits, LEAST_WAIT, MASK_FUEL_UNITS, MASK_ITEMS, MAX_GRAMMAR_SYMBOLS,
    MAX_LEXER_STATES, SLOWED_TIMES, STACK_BYTES, WORDS,
};
use crate::cache::FormCache;
use crate::effort::{CpuTime, CpuTimer};
use crate::fault::GrammarFault;
use crate::forms::{self, TranslatedForm};
use crate::numbers::NumberTokens;
use crate::places::{CompileSlot, CompileSlots};
use crate::state::CompiledForm;
use crate::thought;
use crate::vocabulary::Vocabulary;

/// Compiles forms for one model. Cheap to create: the vocabulary is read when the first form arrives.
pub struct FormCompiler(Arc<CompilerInner>);

/// The tenant for whom a form is compiled.
#[derive(Clone, Copy, Default)]
pub struct FormOwner<'a> {
    /// The tenant's number, as in the engine.
    pub tenant: u64,
    /// Reserves this many bytes of the tenant's memory until the returned value is dropped. Called at most once, before
    /// the form is compiled.
    pub memory: Option<&'a dyn Fn(u64) -> Option<Box<dyn Send>>>,
}

/// Stops the work on a form that no caller waits for any more.
#[derive(Default)]
struct CompileStop(Mutex<StopState>);

#[derive(Default)]
struct StopState {
    now: bool,
    parser: Option<CancellationHandle>,
}

impl CompileStop {
    fn now(&self) {
        let mut stopped = self.0.lock();
        stopped.now = true;
        if let Some(parser) = &stopped.parser {
            parser.cancel();
        }
    }

    /// Registers the parser that a stop cancels.
    fn ends(&self, parser: CancellationHandle) -> Result<(), GrammarFault> {
        self.0.lock().parser = Some(parser);
        self.check()
    }

    fn check(&self) -> Result<(), GrammarFault> {
        if self.0.lock().now { Err(GrammarFault::Busy) } else { Ok(()) }
    }
}

struct CompilerInner {
    tokenizer: Arc<Tokenizer>,
    ends: Vec<u32>,
    size: u32,
    read: OnceLock<Result<VocabularyData, GrammarFault>>,
    cache: Mutex<FormCache>,
    places: Arc<CompileSlots>,
}

/// The parts of a vocabulary that compiling needs.
struct VocabularyData {
    factory: ParserFactory,
    env: TokEnv,
    numbers: Arc<NumberTokens>,
}

impl std::fmt::Debug for FormCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("ids", &self.0.size).finish_non_exhaustive()
    }
}

impl FormCompiler {
    /// Creates a compiler for a model with `size` ids, where the ids in `ends` end an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, ends: &[u32], size: u32) -> Self {
        Self(Arc::new(CompilerInner {
            tokenizer,
            ends: ends.to_vec(),
            size,
            read: OnceLock::new(),
            cache: Mutex::default(),
            places: Arc::default(),
        }))
    }

    /// Returns the grammar of a form. Takes up to [`FormLimits::compile_time`], and somewhat longer for the first form of a
    /// vocabulary. Must not be called from a thread on which others wait.
    ///
    /// # Errors
    /// [`GrammarFault`] says why the form cannot be enforced.
    pub fn compile(
        &self,
        form: &Arc<ResponseFormat>,
        bounds: &FormLimits,
    ) -> Result<SharedGrammar, GrammarFault> {
        self.compile_for(&FormOwner::default(), form, bounds)
    }

    /// As [`FormCompiler::compile`], for a tenant. No tenant takes all compile slots, and the memory for compiling is
    /// charged to the tenant.
    ///
    /// # Errors
    /// As [`FormCompiler::compile`].
    pub fn compile_for(
        &self,
        owner: &FormOwner<'_>,
        form: &Arc<ResponseFormat>,
        bounds: &FormLimits,
    ) -> Result<SharedGrammar, GrammarFault> {
        let key = forms::key(form, bounds)?;
        if let Some(kept) = self.0.cache.lock().get(&key) {
            return Ok(kept);
        }
        let written = forms::written(form)?;
        self.0.read_vocabulary()?;
        let place = CompileSlot::take(&self.0.places, key, owner.tenant)?;
        // Another caller may have compiled it in the meantime.
        if let Some(kept) = self.0.cache.lock().get(&key) {
            return Ok(kept);
        }
        let needed = bounds.compiled_bytes as u64;
        let reserve = |reserve: &dyn Fn(u64) -> Option<Box<dyn Send>>| {
            reserve(needed).ok_or(GrammarFault::NoMemory { needed })
        };
        let memory = owner.memory.map(reserve).transpose()?;
        let compiled =
            CompilerInner::compile_within(&self.0, (place, memory), Arc::clone(form), written, bounds)?;
        Ok(compiled)
    }

    /// As [`FormCompiler::compile_for`], but the form applies after the reasoning, if `thought` is given.
    ///
    /// # Errors
    /// As [`FormCompiler::compile`].
    pub fn compile_behind(
        &self,
        thought: Option<FormThought>,
        owner: &FormOwner<'_>,
        form: &Arc<ResponseFormat>,
        bounds: &FormLimits,
    ) -> Result<SharedGrammar, GrammarFault> {
        let grammar = self.compile_for(owner, form, bounds)?;
        Ok(match thought {
            Some(thought) => thought::after(thought, &self.0.ends, self.0.size, grammar),
            None => grammar,
        })
    }

    /// Number of cached forms, and their bytes.
    pub fn kept(&self) -> (usize, usize) {
        self.0.cache.lock().size()
    }
}

impl CompilerInner {
    fn read_vocabulary(&self) -> Result<&VocabularyData, GrammarFault> {
        let read = self.read.get_or_init(|| {
            let read = catch_unwind(AssertUnwindSafe(|| self.read_now()));
            read.unwrap_or_else(|_| Err(broke("reading the vocabulary panicked")))
        });
        read.as_ref().map_err(Clone::clone)
    }

    fn read_now(&self) -> Result<VocabularyData, GrammarFault> {
        if !self.tokenizer.is_bytewise() {
            let why = "its tokenizer decides by the tokens beside it what text a token means".to_owned();
            return Err(GrammarFault::Vocabulary { why });
        }
        let vocabulary = Vocabulary::new(Arc::clone(&self.tokenizer), &self.ends, self.size);
        let numbers = Arc::new(NumberTokens::of(&self.tokenizer, self.size));
        let env: TokEnv = Arc::new(vocabulary);
        let abilities =
            InferenceCapabilities { ff_tokens: env.tokenize_is_canonical(), ..Default::default() };
        let mut slices = SlicedBiasComputer::general_slices();
        slices.extend(WORDS.map(str::to_owned));
        let mut factory =
            ParserFactory::new(&env, abilities, &slices).map_err(|error| broke(&error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: COMPILE_FUEL_UNITS,
            step_lexer_fuel: MASK_FUEL_UNITS,
            step_max_items: MASK_ITEMS,
            max_lexer_states: MAX_LEXER_STATES,
            max_grammar_size: MAX_GRAMMAR_SYMBOLS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(VocabularyData { factory, env, numbers })
    }

    /// Compiles on a thread of its own, with a stack deep enough for the allowed nesting. The caller waits until the
    /// thread has used its CPU time, if that is known. After that the thread is stopped. A form that it finishes anyway
    /// stays in the cache for the next caller.
    fn compile_within(
        this: &Arc<Self>,
        (place, memory): (CompileSlot, Option<Box<dyn Send>>),
        form: Arc<ResponseFormat>,
        written: TranslatedForm,
        bounds: &FormLimits,
    ) -> Result<Arc<CompiledForm>, GrammarFault> {
        let (sender, result) = sync_channel(1);
        let bytes = bounds.compiled_bytes;
        let effort = Arc::new(CpuTimer::default());
        let its_own = Arc::clone(&effort);
        let stop = Arc::new(CompileStop::default());
        let (inner, waited_for) = (Arc::clone(this), Arc::clone(&stop));
        let work = move || {
            its_own.is_mine();
            let made = catch_unwind(AssertUnwindSafe(|| inner.make(form, &written, bytes, &waited_for)));
            let made = made.unwrap_or_else(|_| Err(broke("it panicked")));
            if let Ok(compiled) = &made {
                inner.cache.lock().put(place.key, Arc::clone(compiled));
            }
            drop((place, memory));
            // The caller may have given up.
            let _ = sender.send(made);
        };
        let builder = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(work).map_err(|error| broke(&error.to_string()))?;
        let until = Instant::now() + bounds.compile_time * SLOWED_TIMES;
        let mut wait = bounds.compile_time;
        loop {
            match result.recv_timeout(wait) {
                Ok(made) => return made,
                Err(RecvTimeoutError::Disconnected) => return Err(broke("its thread ended")),
                Err(RecvTimeoutError::Timeout) => {
                    wait = longer(bounds, &effort, until).inspect_err(|_| stop.now())?;
                }
            }
        }
    }

    /// Compiles a form into at most `bytes`. Returns [`GrammarFault::Busy`] once `stop` says that no caller waits.
    fn make(
        &self,
        form: Arc<ResponseFormat>,
        written: &TranslatedForm,
        bytes: usize,
        stop: &CompileStop,
    ) -> Result<Arc<CompiledForm>, GrammarFault> {
        let VocabularyData { factory, env, numbers } = self.read_vocabulary()?;
        let parser = factory.create_parser(written.grammar.clone());
        let mut first = parser.map_err(|error| written.fault(&format!("{error:#}")))?;
        stop.ends(first.enable_cancellation())?;
        let taken = first.parser.lexer_stats().num_bytes;
        let expression = written.expression.as_deref();
        let automaton = expression.and_then(|pattern| Automaton::of(pattern, env, &self.ends)).map(Arc::new);
        if taken + automaton.as_ref().map_or(0, |automaton| automaton.bytes()) > bytes {
            return Err(GrammarFault::TooCostly { what: "bytes of memory", limit: bytes as u64 });
        }
        stop.check()?;
        first.start_without_prompt();
        // The first mask is computed once for all answers. A form that allows no first token is refused.
        let begun = if first.stopped() { Ok(()) } else { first.compute_mask().map(drop) };
        begun.map_err(|error| written.fault(&format!("{error:#}")))?;
        let numbers = written.bounds_numbers.then(|| Arc::clone(numbers));
        Ok(Arc::new(CompiledForm::new(form, first, automaton, numbers, taken, &self.ends)))
    }
}

/// How much longer to wait for a thread that has not used up its CPU time. Fails if it has, or if `until` is over.
fn longer(bounds: &FormLimits, effort: &CpuTimer, until: Instant) -> Result<Duration, GrammarFault> {
    let left = match effort.spent() {
        CpuTime::Time(spent) => bounds.compile_time.saturating_sub(spent),
        // The thread has ended, so its result is here.
        CpuTime::All => LEAST_WAIT,
        CpuTime::Unknown => Duration::ZERO,
    };
    if left.is_zero() {
        let limit = u64::try_from(bounds.compile_time.as_millis()).unwrap_or(u64::MAX);
        return Err(GrammarFault::TooCostly { what: "ms", limit });
    }
    if Instant::now() >= until { Err(GrammarFault::Busy) } else { Ok(left.max(LEAST_WAIT)) }
}

fn broke(detail: &str) -> GrammarFault {
    GrammarFault::Broke { detail: detail.to_owned() }
}

#[cfg(test)]
mod tests;
