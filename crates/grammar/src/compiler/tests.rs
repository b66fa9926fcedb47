//! Masks of an automaton equal llguidance's, bit by bit. Also tests the limits on time and memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use headrace_checkpoint::Checkpoint;
use headrace_engine_api::CompiledGrammar;

use super::*;

struct TestRng(u64);

impl TestRng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn demo() -> (FormCompiler, Arc<Tokenizer>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let tokenizer = Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config()).unwrap();
    let tokenizer = Arc::new(tokenizer);
    let end = tokenizer.id_of("<|im_end|>").unwrap();
    let size = u32::try_from(tokenizer.vocab_size()).unwrap();
    (FormCompiler::new(Arc::clone(&tokenizer), &[end], size), tokenizer)
}

fn some_pattern(rng: &mut TestRng, depth: u64) -> String {
    const ATOMS: [&str; 18] = [
        "a",
        "the ",
        "[a-z]",
        "[^\\n]",
        ".",
        "\\d",
        "\\w",
        "\\s",
        "\\D",
        "é",
        "[à-ý]",
        "\\p{Lu}",
        "(?i:word)",
        "[^a-m]",
        "\\.",
        "/",
        "\u{1f600}",
        "",
    ];
    const TIMES: [&str; 8] = ["", "?", "*", "+", "{2}", "{1,3}", "{0,9}", "{2,40}"];
    if depth == 0 || rng.below(3) == 0 {
        let atom = ATOMS[rng.below(18) as usize];
        return format!("(?:{atom}){}", TIMES[rng.below(8) as usize]);
    }
    let (one, other) = (some_pattern(rng, depth - 1), some_pattern(rng, depth - 1));
    match rng.below(5) {
        0 => format!("({one}|{other})"),
        1 => format!("(x{one}y){}", TIMES[rng.below(8) as usize]),
        2 if depth == 4 => format!("^{one}{other}$"),
        _ => format!("{one}{other}"),
    }
}

fn ids_in(mask: &[u32]) -> Vec<u32> {
    (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

#[test]
fn masks_of_an_automaton_are_those_of_the_matcher() {
    let (compiler, tokenizer) = demo();
    let seeds = std::env::var("HEADRACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let fixed = [
        "(yes|no|maybe): [^\\n]{20,300}\\.",
        "[a-z0-9._-]{1,40}@[a-z0-9-]+(\\.[a-z]{2,10}){1,3}",
        "a|ab|abc",
    ];
    let (mut shared, mut compared, mut ended) = (0, 0, 0);
    for seed in 0..seeds {
        let rng = &mut TestRng(seed);
        let pattern =
            fixed.get(seed as usize).map_or_else(|| some_pattern(rng, 4), |text| (*text).to_owned());
        let form = Arc::new(ResponseFormat::Regex(pattern.clone()));
        let Ok(with) = forms::written(&form) else { continue };
        let mut without = forms::written(&form).unwrap();
        without.expression = None;
        let make = |written| compiler.0.make(Arc::clone(&form), written, usize::MAX, &CompileStop::default());
        let (Ok(with), Ok(without)) = (make(&with), make(&without)) else { continue };
        if with.bytes() == without.bytes() {
            continue;
        }
        shared += 1;
        for _ in 0..3 {
            let (mut fast, mut slow) = (with.begin(), without.begin());
            let words = tokenizer.vocab_size().div_ceil(32);
            let (mut masks, mut ids) = ([vec![7; words], vec![9; words]], Vec::new());
            for _ in 0..60 {
                let [of_fast, of_slow] = &mut masks;
                if slow.mask(of_slow).is_err() {
                    // Too much work for the matcher. An automaton has no such limit.
                    break;
                }
                fast.mask(of_fast).unwrap();
                let at = || format!("seed {seed}: /{pattern}/ after {:?}", tokenizer.decode(&ids, false));
                let (found, known) = (ids_in(of_fast), ids_in(of_slow));
                assert!(of_fast == of_slow, "{}: {} ids, not {}", at(), found.len(), known.len());
                assert_eq!((fast.forced(), fast.is_over()), (slow.forced(), slow.is_over()), "{}", at());
                compared += 1;
                let open = found;
                // With this many ids, the end of an expression is not reached by chance.
                let most = if rng.below(3) == 0 { 5 } else { usize::MAX };
                let id = open[rng.below(open.len().min(most) as u64) as usize];
                ids.push(id);
                if slow.is_over() || compiler.0.ends.contains(&id) {
                    ended += 1;
                    break;
                }
                slow.accept(id).unwrap();
                fast.accept(id).unwrap();
            }
        }
    }
    println!(
        "{shared} of {seeds} expressions have automata: {compared} masks compared, {ended} answers ended"
    );
    assert!(shared * 2 > seeds && compared > 10 * seeds && ended * 4 > seeds, "{shared} {compared} {ended}");
}

#[test]
fn expressions_too_large_for_an_automaton_are_followed_all_the_same() {
    let (compiler, _) = demo();
    for pattern in ["(a|b)*a(a|b){18}", "(\\p{L}+ ){1,60}\\p{L}", "a(?P<stop>b)"] {
        let form = Arc::new(ResponseFormat::Regex(pattern.to_owned()));
        let written = forms::written(&form).unwrap();
        let began = Instant::now();
        let expression = written.expression.as_deref().unwrap();
        let env = &compiler.0.read_vocabulary().unwrap().env;
        assert!(Automaton::of(expression, env, &[]).is_none(), "{pattern}");
        println!("{pattern}: {:?}", began.elapsed());
        let bytes = FormLimits::default().compiled_bytes;
        let mut state = compiler.0.make(form, &written, bytes, &CompileStop::default()).unwrap().begin();
        let mut mask = vec![0; 4096];
        state.mask(&mut mask).unwrap();
        assert!(mask.iter().any(|word| *word != 0), "{pattern}");
    }
}

/// A form is too costly by its own CPU time, not by other load on the machine.
#[test]
fn a_thread_is_waited_for_by_the_time_that_it_computes() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let effort = Arc::new(CpuTimer::default());
    let bounds = |millis| FormLimits { compile_time: Duration::from_millis(millis), ..FormLimits::default() };
    let (past, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
    // The thread has not started.
    assert_eq!(longer(&bounds(100), &effort, later), Ok(Duration::from_millis(100)));
    assert_eq!(longer(&bounds(100), &effort, past), Err(GrammarFault::Busy));
    let ((asleep, told), (wake, woken)) = (sync_channel(1), sync_channel::<()>(1));
    let its = Arc::clone(&effort);
    let thread = std::thread::spawn(move || {
        its.is_mine();
        let until = Instant::now() + Duration::from_millis(30);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        asleep.send(()).unwrap();
        let _ = woken.recv();
    });
    told.recv().unwrap();
    // The thread has a minute and has used some milliseconds. Then it has no time left.
    std::thread::sleep(Duration::from_millis(20));
    let left = longer(&bounds(60_000), &effort, later).unwrap();
    assert!((58_000..60_000).contains(&left.as_millis()), "{left:?}");
    assert_eq!(longer(&bounds(60_000), &effort, past), Err(GrammarFault::Busy));
    let refused = GrammarFault::TooCostly { what: "ms", limit: 0 };
    assert_eq!(longer(&bounds(0), &effort, later), Err(refused));
    drop(wake);
    thread.join().unwrap();
    assert_eq!(longer(&bounds(100), &effort, later), Ok(LEAST_WAIT));
}

/// Work on a form stops when its caller gives up: between its parts, and where llguidance can be cancelled.
#[test]
fn what_no_caller_waits_for_is_not_compiled_further() {
    let (compiler, _) = demo();
    let form = Arc::new(ResponseFormat::Regex("[a-z]{1,9}x".to_owned()));
    let written = forms::written(&form).unwrap();
    let stop = CompileStop::default();
    assert!(compiler.0.make(Arc::clone(&form), &written, usize::MAX, &stop).is_ok());
    stop.now();
    let refused = compiler.0.make(Arc::clone(&form), &written, usize::MAX, &stop).err();
    assert_eq!(refused, Some(GrammarFault::Busy));
    let parser = stop.0.lock().parser.clone().unwrap();
    assert!(!parser.is_cancelled(), "it was stopped before the parser began");
    stop.now();
    assert!(parser.is_cancelled(), "and a parser that runs is stopped, too");
}

/// Memory is reserved once for each form that is compiled, and not for a cached one.
#[test]
fn memory_is_reserved_before_a_form_is_compiled() {
    let (compiler, _) = demo();
    let asked = Mutex::new(Vec::new());
    let form = Arc::new(ResponseFormat::Regex("[a-z]{1,9}y".to_owned()));
    let bounds = FormLimits { compile_time: Duration::from_secs(20), ..FormLimits::default() };
    let refuse = |bytes| -> Option<Box<dyn Send>> {
        asked.lock().push(bytes);
        None
    };
    let owner = FormOwner { tenant: 1, memory: Some(&refuse) };
    let needed = bounds.compiled_bytes as u64;
    let refused = compiler.compile_for(&owner, &form, &bounds).err();
    assert_eq!((refused, asked.lock().clone()), (Some(GrammarFault::NoMemory { needed }), vec![needed]));
    let grant = |_| -> Option<Box<dyn Send>> { Some(Box::new(())) };
    let owner = FormOwner { tenant: 1, memory: Some(&grant) };
    assert!(compiler.compile_for(&owner, &form, &bounds).is_ok());
    let owner = FormOwner { tenant: 1, memory: Some(&refuse) };
    assert!(compiler.compile_for(&owner, &form, &bounds).is_ok());
    assert_eq!(asked.lock().len(), 1);
}
