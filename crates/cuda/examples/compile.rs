//! Compiles every kernel for the given architectures, without a device, and prints what each kernel takes of a
//! multiprocessor. Needs only NVRTC. The test command runs it for the oldest architecture and for the one that the
//! kernels are tuned on.

use std::process::ExitCode;

use headrace_cuda::device::compile;
use headrace_cuda::kernels::{names, sources};

fn main() -> ExitCode {
    let mut architectures: Vec<String> = std::env::args().skip(1).collect();
    if architectures.is_empty() {
        architectures = vec!["sm_80".to_owned(), "sm_90a".to_owned()];
    }
    for architecture in architectures {
        let mut seen = Vec::new();
        for (file, text) in sources(&architecture) {
            let compiled = match compile(file, text, &architecture) {
                Ok(compiled) => compiled,
                Err(error) => {
                    eprintln!("{architecture}: {error}");
                    return ExitCode::FAILURE;
                }
            };
            println!("{architecture} {file}: {} bytes", compiled.image.len());
            seen.extend(kernels(&compiled.report));
        }
        println!("{:<18} {:>9} {:>14} {:>12}", "kernel", "registers", "shared bytes", "spilled bytes");
        for Kernel { name, registers, shared, spilled } in &seen {
            println!("{name:<18} {registers:>9} {shared:>14} {spilled:>12}");
        }
        // An older NVRTC reports nothing, but produces the image.
        let missing = names(&architecture).filter(|name| !seen.iter().any(|kernel| kernel.name == *name));
        let missing: Vec<_> = missing.collect();
        if !seen.is_empty() && !missing.is_empty() {
            eprintln!("{architecture}: not compiled: {missing:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Resources of one kernel, from the assembler's report.
struct Kernel {
    name: String,
    registers: usize,
    shared: usize,
    spilled: usize,
}

/// Parses the assembler's report. Its lines look like `Compiling entry function 'embed' for 'sm_90'`, `0 bytes stack
/// frame, 0 bytes spill stores, 0 bytes spill loads` and `Used 18 registers, used 1 barriers, 36 bytes smem`.
fn kernels(report: &str) -> Vec<Kernel> {
    let mut found: Vec<Kernel> = Vec::new();
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(Kernel { name, registers: 0, shared: 0, spilled: 0 });
        }
        let Some(kernel) = found.last_mut() else { continue };
        let number = |before: &str| -> usize {
            let words = line.split(before).next().filter(|head| head.len() < line.len());
            words.and_then(|head| head.split_whitespace().last()?.parse().ok()).unwrap_or(0)
        };
        kernel.registers = kernel.registers.max(number(" registers"));
        kernel.shared = kernel.shared.max(number(" bytes smem"));
        kernel.spilled = kernel.spilled.max(number(" bytes spill stores"));
    }
    found
}
