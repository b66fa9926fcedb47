//! The steps of the test command, as one list in the order of execution, and the result table. Each step is implemented
//! in its own file. A step that cannot run here says why and is listed as skipped.

use std::time::{Duration, Instant};

use crate::shell::{Done, Failure, Place, read};
use crate::{
    arm, artefacts, browser, circles, cuda, downloads, errors_page, graph, licences, postgres, prettier,
    programs, python, smoke, source_rules, toolchain, wording,
};

/// The steps to run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which<'a> {
    All,
    From(&'a str),
    Only(&'a str),
}

// Prefixes of results that report something untested.
const SKIPPED: &str = "skipped: ";
const WITHOUT: &str = "passed, without ";

const SAME_BITS: &str = "crates/sim/tests/same_bits.rs";

type Run = fn(&Place) -> Result<Done, Failure>;

/// The step that runs at the same time as the one after it. Both mostly wait: for processes, timers and a browser.
const BESIDE_NEXT: &str = "sdk";

/// Name, purpose and function.
type Step = (&'static str, &'static str, Run);

/// All steps. Those that can fail in seconds come first.
const STEPS: &[Step] = &[
    ("tools", "Rust components and Python are there; what can be installed is", tools),
    (
        "rules",
        "crate graph, circles of files, file sizes, forbidden constructs, error page, wording",
        |place| passed(rules(place)),
    ),
    (
        "python",
        "the SDK tests' own environments under target: Python's, and Node's packages",
        python::install,
    ),
    ("format", "rustfmt and prettier have nothing to change", format),
    ("licences", "licences, sources and banned crates of every dependency (deny.toml)", licences::check),
    ("lint", "clippy with every warning denied, with the code for GPUs", lint),
    ("aarch64", "the engine half and the ledger compile for aarch64", arm::check),
    ("cuda", "the kernels for GPUs compile for sm_80 and sm_90a", cuda::check),
    ("tests", "every unit, property, oracle, crash and end-to-end test", tests),
    ("postgres", "several gateways over PostgreSQL 15 and 18: kills, cuts, one balance", postgres::test),
    ("isa", "same bits once more on each slower instruction set of this machine", instruction_sets),
    ("neon", "kernels and oracles on 64-bit Arm under an emulator", arm::emulate),
    ("binary", "the program as the README starts it", binary),
    ("generated", "generated files are what the program generates", |place| passed(artefacts::check(place))),
    (
        "downloads",
        "archive, Debian package, checksums, signature and parts of a release of this program",
        downloads::run,
    ),
    (
        "sdk",
        "official SDKs (Python, TypeScript) and other people's clients against running servers",
        python::test,
    ),
    ("console", "the pages in Chromium, over a running server and over canned answers", browser::test),
    ("smoke", "the demo model answers, bills, traces and stops, on each instruction set", smoke::run),
];

/// Runs the steps, prints the table, and returns the first failure.
pub(crate) fn run(place: &Place, which: Which<'_>) -> Result<(), Failure> {
    let first = match which {
        Which::All => 0,
        Which::From(name) | Which::Only(name) => position(name)?,
    };
    let count = if matches!(which, Which::Only(_)) { 1 } else { STEPS.len() };
    let mut rows = Vec::new();
    let mut failure = None;
    let began = Instant::now();
    let mut left = STEPS.iter().enumerate().skip(first).take(count);
    while let Some(step) = left.next() {
        let beside = if step.1.0 == BESIDE_NEXT { left.next() } else { None };
        let ended = std::thread::scope(|scope| {
            let beside = beside.map(|step| scope.spawn(move || timed(place, step)));
            let own = timed(place, step);
            let beside = beside.map(|running| running.join().unwrap_or_else(|_| panicked()));
            std::iter::once(own).chain(beside).collect::<Vec<_>>()
        });
        for (name, (outcome, took)) in
            [Some(step), beside].into_iter().flatten().map(|(_, of)| of.0).zip(ended)
        {
            match outcome {
                Ok(Done::Passed) => rows.push((name, "passed".to_owned(), took)),
                Ok(Done::Without(what)) => rows.push((name, format!("{WITHOUT}{what}"), took)),
                Ok(Done::Skipped(why)) => {
                    println!("skipped: {why}");
                    rows.push((name, format!("{SKIPPED}{why}"), took));
                }
                Err(error) => {
                    rows.push((name, "FAILED".to_owned(), took));
                    failure.get_or_insert_with(|| error.while_at(name));
                }
            }
        }
        if failure.is_some() {
            break;
        }
    }
    print_table(&rows, began.elapsed());
    print_not_run(&rows);
    failure.map_or(Ok(()), Err)
}

/// Runs a step, and returns its outcome and duration.
fn timed(place: &Place, (at, (name, what, step)): (usize, &Step)) -> (Result<Done, Failure>, Duration) {
    println!("\n== {}/{} {name}: {what}", at + 1, STEPS.len());
    let started = Instant::now();
    let outcome = step(place);
    (outcome, started.elapsed())
}

fn panicked() -> (Result<Done, Failure>, Duration) {
    (Err(Failure::new("the step panicked", "read the output above")), Duration::ZERO)
}

/// Prints the names of the steps, for people.
pub(crate) fn list() {
    for (name, what, _) in STEPS {
        println!("{name:<10} {what}");
    }
}

/// Checks everything that can be checked by reading the tree.
pub(crate) fn rules(place: &Place) -> Result<(), Failure> {
    let mut broken = graph::violations(place)?;
    broken.extend(circles::violations(&place.root)?);
    broken.extend(source_rules::violations(&place.root)?);
    broken.extend(errors_page::violations(&place.root)?);
    broken.extend(wording::violations(&place.root)?);
    if broken.is_empty() {
        println!("every source rule holds");
        return Ok(());
    }
    let count = broken.len();
    Err(Failure::new(
        format!("{count} source rules are broken:\n  {}", broken.join("\n  ")),
        "change the code, or, where the rule is what should change, ARCHITECTURE.md and the table in xtask/src together",
    ))
}

fn position(name: &str) -> Result<usize, Failure> {
    STEPS.iter().position(|(step, ..)| *step == name).ok_or_else(|| {
        let names: Vec<_> = STEPS.iter().map(|(step, ..)| *step).collect();
        Failure::new(format!("there is no step `{name}`"), format!("choose one of {}", names.join(", ")))
    })
}

fn print_table(rows: &[(&str, String, Duration)], total: Duration) {
    println!("\n{:<10} {:>8}  result", "step", "time");
    for (name, result, took) in rows {
        println!("{name:<10} {:>8}  {result}", humane(*took));
    }
    println!("{:<10} {:>8}", "all", humane(total));
}

/// The final report: what was not tested, and how it could be.
fn print_not_run(rows: &[(&str, String, Duration)]) {
    let left_out = |result: &str| [SKIPPED, WITHOUT].iter().any(|word| result.starts_with(word));
    let skipped: Vec<_> = rows.iter().filter(|(_, result, _)| left_out(result)).collect();
    if skipped.is_empty() {
        return;
    }
    println!("\n!! NOT RUN, so nothing is known of it on this machine:");
    for (name, result, _) in skipped {
        println!("!!   {name}: {result}");
    }
}

fn humane(took: Duration) -> String {
    match took.as_secs() {
        0..=99 => format!("{:.1} s", took.as_secs_f64()),
        seconds => format!("{} min {:02}", seconds / 60, seconds % 60),
    }
}

fn passed(result: Result<(), Failure>) -> Result<Done, Failure> {
    result.map(|()| Done::Passed)
}

fn tools(place: &Place) -> Result<Done, Failure> {
    toolchain::components(place)?;
    toolchain::arm_target(place);
    passed(python::found(place))
}

fn format(place: &Place) -> Result<Done, Failure> {
    let checked = place.cargo(&["fmt", "--all", "--check"], &[]);
    checked.map_err(|failure| failure.with_remedy("cargo fmt --all"))?;
    prettier::check(place)
}

// The same profile everywhere, so that a fresh machine compiles every dependency once. With the code that talks to a GPU.
fn lint(place: &Place) -> Result<Done, Failure> {
    let selected = ["--workspace", "--all-targets", "--features", cuda::FEATURE];
    let arguments = [&["clippy", "--release"][..], &selected, &["--", "-D", "warnings"]].concat();
    passed(place.cargo(&arguments, &[]))
}

fn tests(place: &Place) -> Result<Done, Failure> {
    programs::run(&programs::compile(place, &programs::ALL, &[])?)?;
    for example in source_rules::EXAMPLE_PAGES {
        place.cargo(&["test", "--release", "--doc", "-p", &format!("headrace-{example}")], &[])?;
    }
    Ok(Done::Passed)
}

/// Runs the engine's tests on the slower instruction sets. They use the fastest one by default; the tests of kernels
/// and models run on all of them in one process.
fn instruction_sets(place: &Place) -> Result<Done, Failure> {
    // A test that ignores the variable would run on the fastest one again and prove nothing.
    if !read(&place.root.join(SAME_BITS))?.contains("ISA_VARIABLE") {
        let remedy =
            format!("in {SAME_BITS}, choose with `Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref())`");
        return Err(Failure::new(format!("{SAME_BITS} does not read HEADRACE_ISA"), remedy));
    }
    binary(place)?;
    let supported = smoke::instruction_sets(place)?;
    let Some((_fastest, slower)) = supported.split_last() else { return Ok(Done::Passed) };
    let compiled = programs::compile(place, &["--workspace", "--test", "same_bits"], &[])?;
    let on = |isa| compiled.iter().map(move |program| program.clone().with("HEADRACE_ISA", isa));
    let all: Vec<_> = slower.iter().flat_map(|isa| on(isa.as_str())).collect();
    passed(programs::run(&all))
}

fn binary(place: &Place) -> Result<Done, Failure> {
    passed(place.cargo(&["build", "--release"], &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_at_a_glance() {
        assert_eq!(humane(Duration::from_millis(1_240)), "1.2 s");
        assert_eq!(humane(Duration::from_secs(125)), "2 min 05");
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_known_ones() {
        let error = position("tset").unwrap_err().to_string();
        assert!(error.contains("tset") && error.contains("smoke"), "{error}");
    }
}
