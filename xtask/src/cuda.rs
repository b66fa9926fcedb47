//! The GPU's kernels, compiled without a GPU: NVIDIA's run-time compiler comes as a Python package, into an environment of its own.
//! Knows where the compiler is, never what the kernels compute.

use std::path::PathBuf;

use crate::python;
use crate::shell::{Done, Failure, Place};

const ENVIRONMENT: &str = "venv-cuda";
const REQUIREMENTS: &str = "crates/cuda/kernels/requirements.txt";
/// The oldest that is supported, and the one that the kernels are tuned on.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

/// What the room says with the feature, and every kernel for each architecture, with registers and spills.
pub(crate) fn check(place: &Place) -> Result<Done, Failure> {
    let with_cuda = ["--release", "-p", "headrace-cuda", "--features", "cuda"];
    let lint = [&["clippy"][..], &with_cuda, &["--all-targets", "--", "-D", "warnings"]].concat();
    place.cargo(&lint, &[])?;
    if let Err(failure) = python::environment(place, ENVIRONMENT, REQUIREMENTS) {
        println!("{failure}");
        return Ok(Done::Without(format!("the kernels: {REQUIREMENTS} cannot be installed here")));
    }
    let Some(compiler) = compiler(place) else {
        return Ok(Done::Without(format!(
            "the kernels: no libnvrtc is in what {REQUIREMENTS} installs here"
        )));
    };
    let compile = [&["run"][..], &with_cuda, &["--example", "compile", "--"], &ARCHITECTURES].concat();
    place.cargo(&compile, &[("LD_LIBRARY_PATH", &compiler.to_string_lossy())])?;
    Ok(Done::Passed)
}

/// The folder of the environment's NVRTC.
fn compiler(place: &Place) -> Option<PathBuf> {
    let versions = std::fs::read_dir(place.target.join(ENVIRONMENT).join("lib")).ok()?;
    let folders =
        versions.flatten().map(|version| version.path().join("site-packages/nvidia/cuda_nvrtc/lib"));
    folders.into_iter().find(|folder| folder.is_dir())
}
