//! Where the weights of a part come from: a stored tensor, and the rows of it that the part takes. Fused, interleaved
//! and transposed tensors are described here, so that only loading needs to know them.

/// A size and the field of the configuration that gives it, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeField {
    /// Number of elements.
    pub size: usize,
    /// The field, or a product of fields.
    pub field: &'static str,
}

impl SizeField {
    /// A dimension of `size` elements that `field` gives.
    pub const fn new(size: usize, field: &'static str) -> Self {
        Self { size, field }
    }
}

/// A tensor that must exist in the checkpoint.
///
/// Equal if names and shapes are. The fields are for messages only.
#[derive(Debug, Clone)]
pub struct TensorSpec {
    /// The name in Hugging Face's checkpoints.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The fields of the configuration that give the dimensions, in the same order.
    pub fields: Vec<&'static str>,
}

impl PartialEq for TensorSpec {
    fn eq(&self, other: &Self) -> bool {
        let Self { name, shape, fields: _ } = self;
        *name == other.name && *shape == other.shape
    }
}

impl Eq for TensorSpec {}

impl TensorSpec {
    pub(crate) fn new(name: String, dimensions: &[SizeField]) -> Self {
        Self {
            name,
            shape: dimensions.iter().map(|dimension| dimension.size).collect(),
            fields: dimensions.iter().map(|dimension| dimension.field).collect(),
        }
    }

    /// The fields that give the shape, as messages show them.
    pub(crate) fn shown_fields(&self) -> String {
        format!("[{}]", self.fields.join(", "))
    }
}

/// The rows that a part takes of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPick {
    /// All rows, in their order.
    All,
    /// From each group of `group` rows, `count` rows from `first` on. One group of all rows is a slice of a fused
    /// tensor; groups of two rows are interleaved projections.
    Grouped {
        /// Rows of a group. Divides the tensor's rows.
        group: usize,
        /// First row taken within a group.
        first: usize,
        /// Rows taken of a group.
        count: usize,
    },
    /// The tensor is stored as inputs × outputs. Takes `count` columns as rows: `first`, `first + step` and so on.
    Transposed {
        /// First column taken.
        first: usize,
        /// Columns from one that is taken to the next.
        step: usize,
        /// Columns taken.
        count: usize,
    },
    /// Takes all columns of the rows from `first` on, each as a row of `count` weights: a slice of a fused tensor that is
    /// applied transposed.
    Columns {
        /// First row of the slice.
        first: usize,
        /// Rows of the slice.
        count: usize,
    },
}

/// Rows of a stored tensor: a matrix, or a vector whose elements count as rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSource {
    /// The stored tensor.
    pub tensor: TensorSpec,
    /// Index along the outermost dimension, if the tensor stacks those of several experts.
    pub expert: Option<usize>,
    /// The rows that are taken, of the tensor or of the expert's part.
    pub pick: RowPick,
    /// Whether the checkpoint rotates neighbouring elements `(2i, 2i + 1)` of a head. Loading reorders the rows, so that
    /// pairs are half of the rotated width apart.
    pub pairs: Option<RotaryPairs>,
    /// Where the rows are if the tensor does not exist.
    pub otherwise: Option<Box<RowSource>>,
}

/// Whether a checkpoint has a tensor, from the worst to the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TensorFit {
    /// It does not exist.
    Absent,
    /// A tensor with this name has another shape.
    OtherShape,
    /// It exists.
    Present,
}

/// Heads whose rotated pairs are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotaryPairs {
    /// Rows of a head.
    pub head: usize,
    /// Rotated rows, from the start of a head. Even.
    pub rotated: usize,
}

/// A stored source of one part of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartSource<'a> {
    pub(crate) source: &'a RowSource,
    /// What the checkpoint stores of each element.
    pub(crate) form: ElementForm,
    /// Whether the elements are the factors of a norm.
    pub(crate) is_norm: bool,
}

impl<'a> PartSource<'a> {
    /// A part that uses the elements as they are stored.
    pub(crate) fn plain(source: &'a RowSource) -> Self {
        Self { source, form: ElementForm::Plain, is_norm: false }
    }
}

/// What a checkpoint stores of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementForm {
    /// The element.
    Plain,
    /// The element less 1.
    LessOne,
    /// The logarithm of the element.
    Logarithm,
    /// The element with a minus sign.
    Negative,
}

impl RowSource {
    /// The whole tensor.
    pub(crate) fn whole(name: String, dimensions: &[SizeField]) -> Self {
        Self {
            tensor: TensorSpec::new(name, dimensions),
            expert: None,
            pick: RowPick::All,
            pairs: None,
            otherwise: None,
        }
    }

    /// Takes the first source whose tensor exists, and of two sources with one name the one whose shape fits.
    pub(crate) fn resolve(&mut self, fit: &dyn Fn(&TensorSpec) -> TensorFit) {
        let mut best = fit(&self.tensor);
        let mut next = self.otherwise.take();
        while let Some(mut other) = next {
            next = other.otherwise.take();
            let fit = fit(&other.tensor);
            if fit > best {
                best = fit;
                *self = *other;
            }
        }
    }
}

/// A dense layer `y = W·x + b`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearConfig {
    /// Number of outputs.
    pub outputs: usize,
    /// Number of inputs.
    pub inputs: usize,
    /// The weights, one row for each output.
    pub weight: RowSource,
    /// The bias, one element for each output.
    pub bias: Option<RowSource>,
}

impl LinearConfig {
    /// A dense layer with a tensor `{name}.weight` and, if `has_bias`, a tensor `{name}.bias` of its own.
    pub(crate) fn own(name: &str, outputs: SizeField, inputs: SizeField, has_bias: bool) -> Self {
        Self {
            outputs: outputs.size,
            inputs: inputs.size,
            weight: RowSource::whole(format!("{name}.weight"), &[outputs, inputs]),
            bias: has_bias.then(|| RowSource::whole(format!("{name}.bias"), &[outputs])),
        }
    }

    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        list.push(PartSource::plain(&self.weight));
        list.extend(self.bias.iter().map(PartSource::plain));
    }
}
