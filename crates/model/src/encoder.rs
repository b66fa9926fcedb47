//! An encoder: takes whole sequences, and returns a vector or a score for each. Attention sees a whole sequence at
//! once, so keys and values are needed only within their layer. Must not know: who calls, how batches are made, or how
//! a vector is used.

mod bert;
mod causal;
mod layers;
mod load;
mod modern;
mod output;
mod rows;

use headrace_kernels::encode::{Encode, EncodeShape, Sequence, Vectors};
use headrace_kernels::forward::ForwardError;
use headrace_kernels::{KernelError, Kernels};

pub use load::EncoderOptions;

use crate::model::contained;
use bert::Bert;
use causal::Causal;
use layers::Work;
use modern::Modern;
use output::Output;
use rows::Rows;

/// A loaded encoder.
pub struct Encoder {
    shape: EncodeShape,
    numerics: String,
    body: Body,
    output: Output,
    rows: Rows,
}

/// The layers and their working memory.
enum Body {
    Bert(Bert, Work),
    Modern(Modern, Work),
    Causal(Box<Causal>),
}

impl Body {
    fn kernels(&mut self) -> &mut Kernels {
        match self {
            Body::Bert(_, work) | Body::Modern(_, work) => &mut work.kernels,
            Body::Causal(causal) => causal.kernels(),
        }
    }
}

impl Encode for Encoder {
    fn shape(&self) -> &EncodeShape {
        &self.shape
    }

    fn numerics(&self) -> &str {
        &self.numerics
    }

    fn encode(&mut self, batch: &[Sequence<'_>], out: &mut Vectors) -> Result<(), ForwardError> {
        out.reset(0, self.shape.width);
        self.rows.fill(batch, &self.shape)?;
        if batch.is_empty() {
            return Ok(());
        }
        out.reset(batch.len(), self.shape.width);
        self.body.kernels().pool().begin();
        let step = contained(|| self.compute(batch, out));
        self.body.kernels().pool().end();
        if step.is_err() {
            out.reset(0, self.shape.width);
        }
        step
    }
}

impl Encoder {
    fn compute(&mut self, batch: &[Sequence<'_>], out: &mut Vectors) -> Result<(), KernelError> {
        let Encoder { body, output, rows, .. } = self;
        let whole = rows.ranges();
        match body {
            Body::Bert(bert, work) => {
                bert.states(work, rows)?;
                output.finish(&mut work.kernels, &work.scratch.stream, whole, out)
            }
            Body::Modern(modern, work) => {
                modern.states(work, rows)?;
                output.finish(&mut work.kernels, &work.scratch.stream, whole, out)
            }
            Body::Causal(causal) => {
                let last_alone = output.wants_last_alone();
                causal.states(batch, rows, last_alone)?;
                let (kernels, states) = causal.computed();
                match last_alone {
                    false => output.finish(kernels, states, whole, out),
                    true => {
                        let single: Vec<_> = (0..batch.len()).map(|row| row..row + 1).collect();
                        output.finish(kernels, states, &single, out)
                    }
                }
            }
        }
    }
}
