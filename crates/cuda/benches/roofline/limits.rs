//! Measures the limits of a device: bytes copied and bf16 operations per second, each the median of several runs.

use std::panic::catch_unwind;

use cudarc::cublaslt::{CudaBlasLT, Matmul, MatmulConfig, sys};
use cudarc::driver::{CudaContext, DeviceRepr, ValidAsZeroBits};
use headrace_cuda::device::{Device, Nvidia};

use crate::{Failure, random};

/// Bytes of the buffer that is copied.
const BYTES: usize = 1 << 30;
/// Rows, features and inputs of the product.
const SIDE: usize = 8192;
const TIMES: usize = 10;

pub(crate) struct Limits {
    /// Bytes read and written per second.
    pub(crate) bytes: f64,
    /// bf16 operations per second. `None` if cuBLASLt was not found.
    pub(crate) flops: Option<f64>,
}

impl Limits {
    pub(crate) fn measure(device: &mut Nvidia) -> Result<Limits, Failure> {
        let (from, to) = (random::fill(device, BYTES, 1)?, device.allocate(BYTES)?);
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let begun = copied(device, to, from)?;
            times.push(begun);
        }
        device.free(from)?;
        device.free(to)?;
        let bytes = 2.0 * BYTES as f64 / median(&mut times);
        // cudarc panics if the library is missing.
        let flops = catch_unwind(product)
            .ok()
            .and_then(|rate| rate.map_err(|error| println!("cuBLASLt: {error}")).ok());
        Ok(Limits { bytes, flops })
    }

    /// The minimum seconds for the given bytes and operations.
    pub(crate) fn floor(&self, bytes: f64, flops: f64) -> Option<f64> {
        self.flops.map(|rate| (bytes / self.bytes).max(flops / rate))
    }
}

fn copied(
    device: &mut Nvidia,
    to: headrace_cuda::device::Buffer,
    from: headrace_cuda::device::Buffer,
) -> Result<f64, Failure> {
    device.copy(to, from)?;
    device.synchronize()?;
    let started = std::time::Instant::now();
    for _ in 0..4 {
        device.copy(to, from)?;
    }
    device.synchronize()?;
    Ok(started.elapsed().as_secs_f64() / 4.0)
}

/// Bits of a bf16. cudarc supports the bf16 type of another crate, but that support would enable that crate's features
/// for the whole workspace.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bf16(u16);

// SAFETY: two plain bytes. Any bits are a number.
unsafe impl DeviceRepr for Bf16 {}
// SAFETY: zero bits are the number zero.
unsafe impl ValidAsZeroBits for Bf16 {}

impl Matmul<Bf16> for CudaBlasLT {
    fn matrix_type() -> sys::cudaDataType {
        sys::cudaDataType_t::CUDA_R_16BF
    }

    fn compute_type() -> sys::cublasComputeType_t {
        sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
    }
}

fn product() -> Result<f64, Failure> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let blas = CudaBlasLT::new(stream.clone())?;
    let values = |seed| -> Vec<Bf16> { random::words(SIDE * SIDE, seed).into_iter().map(Bf16).collect() };
    let (a, b) = (stream.clone_htod(&values(1))?, stream.clone_htod(&values(2))?);
    let mut c = stream.alloc_zeros::<Bf16>(SIDE * SIDE)?;
    let side = SIDE as u64;
    let config = || MatmulConfig {
        transa: true,
        transb: false,
        transc: false,
        m: side,
        n: side,
        k: side,
        alpha: 1.0,
        lda: SIDE as i64,
        ldb: SIDE as i64,
        beta: 0.0,
        ldc: SIDE as i64,
        stride_a: None,
        stride_b: None,
        stride_c: None,
        stride_bias: None,
        batch_size: None,
    };
    let mut times = Vec::new();
    for _ in 0..TIMES {
        stream.synchronize()?;
        let started = std::time::Instant::now();
        for _ in 0..4 {
            // SAFETY: all three matrices have the sizes in the configuration.
            unsafe { blas.matmul(config(), &a, &b, &mut c, None, None)? };
        }
        stream.synchronize()?;
        times.push(started.elapsed().as_secs_f64() / 4.0);
    }
    Ok(2.0 * (SIDE as f64).powi(3) / median(&mut times))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
