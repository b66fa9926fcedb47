//! Compiles the GPU kernels without a GPU. NVIDIA's run-time compiler is a Python package, installed in its own
//! environment. Knows where the compiler is, not what the kernels compute.

use std::path::PathBuf;

use crate::python;
use crate::shell::{Done, Failure, Place};

const ENVIRONMENT: &str = "venv-cuda";
const REQUIREMENTS: &str = "crates/cuda/kernels/requirements.txt";
/// The oldest supported architecture, and the one that the kernels are tuned for.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];

/// Lints the crate with the feature `cuda`, and compiles every kernel for each architecture, with its registers and
/// spills.
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

/// The folder of NVRTC in the environment.
fn compiler(place: &Place) -> Option<PathBuf> {
    let versions = std::fs::read_dir(place.target.join(ENVIRONMENT).join("lib")).ok()?;
    let folders =
        versions.flatten().map(|version| version.path().join("site-packages/nvidia/cuda_nvrtc/lib"));
    folders.into_iter().find(|folder| folder.is_dir())
}
