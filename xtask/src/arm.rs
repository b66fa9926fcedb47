//! 64-bit Arm from another machine: compiles the crates for it, and runs the tests of kernels and models under an
//! emulator. Knows where the tools are, not what is computed.

use std::path::Path;

use crate::debian;
use crate::programs::{self, Program};
use crate::shell::{Done, Failure, Place, capture};

/// The target's name.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The folder of Debian's C library for the target.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const PACKAGES: [&str; 3] = ["qemu-user", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
/// Beginnings of the tests that take minutes under an emulator and compute nothing that the others do not.
const SLOW: [&str; 5] = [
    "every_cut_gives_the_same_bits",
    "experts_of_quantized_checkpoints_stay",
    "gguf_files_give",
    "quantized_checkpoints_have_the_same_bits_in_any_chunks",
    "values_within_keys_agree_with_f64_and_do_not_depend_on_chunks_or_threads",
];
/// Makes blake3 use pure Rust. By default it builds C code for NEON.
const PURE: (&str, &str) = ("CARGO_FEATURE_PURE", "1");

/// Checks the crates that need no C compiler for the target.
pub(crate) fn check(place: &Place) -> Result<Done, Failure> {
    if let Some(why) = no_target(place)? {
        return Ok(Done::Skipped(why));
    }
    let crates =
        ["-p", "headrace-kernels", "-p", "headrace-model", "-p", "headrace-engine", "-p", "headrace-ledger"];
    let strict = ["--", "-D", "warnings"];
    let arguments = [&["clippy", "--release", "--target", TARGET][..], &crates[..], &strict[..]].concat();
    place.cargo(&arguments, &[PURE])?;
    Ok(Done::Passed)
}

/// Runs every kernel test except one that takes minutes, and the oracle tests of whole models. Runs the tests of
/// integer products again on a processor without dot products.
pub(crate) fn emulate(place: &Place) -> Result<Done, Failure> {
    if cfg!(target_arch = "aarch64") {
        return Ok(Done::Skipped("this machine is one: the tests ran on it".to_owned()));
    }
    if let Some(why) = no_target(place)? {
        return Ok(Done::Skipped(why));
    }
    if !tools(place) {
        debian::install(place, &PACKAGES);
    }
    if !tools(place) {
        return Ok(Done::Skipped(format!("no emulator (Debian: apt-get install {})", PACKAGES.join(" "))));
    }
    let environment = [("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER), PURE];
    let compile = |arguments: &[&str]| {
        programs::compile(place, &[&["--target", TARGET], arguments].concat(), &environment)
    };
    let kernels = compile(&["-p", "headrace-kernels", "--lib", "--tests"])?;
    let oracles = compile(&["-p", "headrace-model", "--test", "oracles"])?;
    let older = kernels
        .iter()
        .filter(|program| program.is_test("quantized"))
        .map(|program| on(program, "cortex-a72"));
    let newer = oracles.iter().chain(&kernels).map(|program| on(program, "max"));
    let all: Vec<_> = newer
        .map(|program| program.arguments(&SLOW.map(|name| ["--skip", name]).concat()))
        .chain(older)
        .collect();
    programs::run(&all)?;
    Ok(Done::Passed)
}

/// The program on an emulated processor.
fn on(program: &Program, processor: &str) -> Program {
    let runner = [EMULATOR, "-cpu", processor, "-L", LIBRARIES];
    program.clone().run_by(&runner).with("HEADRACE_ISA", "neon").with("HEADRACE_EMULATED", "1")
}

/// Why nothing can be compiled for the target. `None` if it is installed.
pub(crate) fn no_target(place: &Place) -> Result<Option<String>, Failure> {
    let line = format!("rustc --print target-libdir --target {TARGET}");
    let library =
        capture(place.command("rustc").args(["--print", "target-libdir", "--target", TARGET]), &line)?;
    let missing = !Path::new(library.trim()).exists();
    Ok(missing.then(|| format!("the target is not installed (rustup target add {TARGET}; without rustup, the toolchain's package for it)")))
}

/// Returns `true` if linker, C library and emulator are installed.
fn tools(place: &Place) -> bool {
    let starts = |program| capture(place.command(program).arg("--version"), program).is_ok();
    starts(LINKER) && starts(EMULATOR) && Path::new(LIBRARIES).exists()
}
