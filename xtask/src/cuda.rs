//! Compiles the GPU kernels without a GPU. NVIDIA's run-time compiler is a Python package, installed in its own
//! environment. Knows where the compiler is, not what the kernels compute.

use std::path::PathBuf;

use crate::python;
use crate::shell::{Done, Failure, Place, show};

const ENVIRONMENT: &str = "venv-cuda";
const REQUIREMENTS: &str = "crates/cuda/kernels/requirements.txt";
/// The feature that talks to a GPU.
pub(crate) const FEATURE: &str = "headrace-cuda/cuda";
/// The program that compiles the kernels.
const EXAMPLE: &str = "compile";
/// The oldest supported architecture, and the one that the kernels are tuned for.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];

/// Compiles every kernel for each architecture, with its registers and spills. The step `lint` checks the crate with the
/// feature `cuda`.
pub(crate) fn check(place: &Place) -> Result<Done, Failure> {
    if let Err(failure) = python::environment(place, ENVIRONMENT, REQUIREMENTS) {
        println!("{failure}");
        return Ok(Done::Without(format!("the kernels: {REQUIREMENTS} cannot be installed here")));
    }
    let Some(compiler) = compiler(place) else {
        return Ok(Done::Without(format!(
            "the kernels: no libnvrtc is in what {REQUIREMENTS} installs here"
        )));
    };
    // In the workspace, so that its dependencies are those of the other steps.
    place.cargo(&["build", "--release", "--workspace", "--features", FEATURE, "--example", EXAMPLE], &[])?;
    let program = place.target.join("release/examples").join(EXAMPLE);
    let mut compile = place.command(&program);
    compile.args(ARCHITECTURES).env("LD_LIBRARY_PATH", compiler);
    show(&mut compile, &format!("{} {}", program.display(), ARCHITECTURES.join(" ")))?;
    Ok(Done::Passed)
}

/// The folder of NVRTC in the environment.
fn compiler(place: &Place) -> Option<PathBuf> {
    let versions = std::fs::read_dir(place.target.join(ENVIRONMENT).join("lib")).ok()?;
    let folders =
        versions.flatten().map(|version| version.path().join("site-packages/nvidia/cuda_nvrtc/lib"));
    folders.into_iter().find(|folder| folder.is_dir())
}
