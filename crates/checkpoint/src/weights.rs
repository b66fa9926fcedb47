//! The location of each tensor of a checkpoint, in files of any format, and the check against the configuration. Must
//! not know what the tensors are used for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::decoder::{LayerConfig, ModelConfig, RowPick, TensorFit, TensorSpec};
use crate::error::{CheckpointError, shown};
use crate::identity::Identity;
use crate::inventory::{self, Required};
use crate::order::StoredOrder;
use crate::recipe::{MatrixRecipe, RecipeFault, StoredTensor};
use crate::scheme::WeightScheme;
use crate::source::Contents;
use crate::tensor::{DType, Tensor, stacked_part};

/// The weight files, and the location of each tensor.
pub(crate) struct Weights {
    pub(crate) files: Vec<WeightFile>,
    /// Tensors by their names in Hugging Face's checkpoints.
    pub(crate) tensors: BTreeMap<String, Stored>,
    /// The file that lists the tensors: the index, or the first weight file. Errors about absent tensors name it.
    pub(crate) listed_in: String,
    /// The part of the checkpoint that calls for the tensors, as errors name it.
    pub(crate) called_for_by: &'static str,
    /// Names of tensors in files of this format, by their names in Hugging Face's checkpoints, where they differ.
    pub(crate) aliases: BTreeMap<String, String>,
    /// The element types that weights may have in files of this format, as messages show them.
    pub(crate) supported: &'static str,
    /// How quantized matrices are stored. `None` if each is one tensor.
    pub(crate) scheme: Option<WeightScheme>,
    /// Matrices that are made from several tensors, by name, or why they cannot be made. See [`Weights::find_recipes`].
    pub(crate) recipes: BTreeMap<String, Result<MatrixRecipe, RecipeFault>>,
}

/// An open weight file.
pub(crate) struct WeightFile {
    pub(crate) name: String,
    pub(crate) contents: Contents,
    /// Bytes of the header, which describes the file's contents.
    pub(crate) header_bytes: usize,
    /// The name under which the header enters the fingerprint.
    pub(crate) known_as: String,
}

/// The location of one tensor.
pub(crate) struct Stored {
    /// Index into [`Weights::files`].
    pub(crate) file: usize,
    /// The tensor's name in the file, if it differs.
    pub(crate) alias: Option<String>,
    /// Element type as the file spells it, and the type used for computation. `None` if the type is not supported.
    pub(crate) element: (&'static str, Option<DType>),
    /// Dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Byte range in the file.
    pub(crate) range: Range<usize>,
    /// How the file orders the tensor, if not as Hugging Face's checkpoints do.
    pub(crate) order: Option<StoredOrder>,
}

impl Weights {
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        if let Some((name, recipe)) = self.recipes.get_key_value(name) {
            let made = recipe.as_ref().map_err(Clone::clone);
            let find = |name: &str| self.stored(name);
            let made = made.and_then(|recipe| Ok((recipe, recipe.bytes(&find)?)));
            let (recipe, bytes) = made.map_err(|fault| self.of_fault(&fault))?;
            return Ok(Tensor { name, dtype: recipe.dtype, shape: &recipe.shape, bytes: Cow::Owned(bytes) });
        }
        let absent = |file: &str| tensor_error(file, name, "presence", "there is no such tensor".to_owned());
        let Some((name, stored)) = self.tensors.get_key_value(name) else {
            return Err(absent(&self.listed_in));
        };
        // Both lookups succeed, because positions and ranges were made from these very files.
        let file = self.files.get(stored.file).ok_or_else(|| absent(&self.listed_in))?;
        let bytes = file.contents.get(stored.range.clone()).ok_or_else(|| absent(&file.name))?;
        let refuse = |problem| tensor_error(&file.name, stored.shown_as(name), "dtype", problem);
        let (spelled, dtype) = stored.element;
        let dtype = dtype.ok_or_else(|| refuse(self.not_supported(spelled)))?;
        let Some(order) = stored.order else {
            return Ok(Tensor { name, dtype, shape: &stored.shape, bytes: Cow::Borrowed(bytes) });
        };
        let restored = order.restore(bytes, dtype, &stored.shape).ok_or_else(|| {
            refuse(format!("{spelled} with shape {:?} has no rows and columns of whole heads", stored.shape))
        })?;
        Ok(Tensor { name, dtype, shape: &stored.shape, bytes: Cow::Owned(restored) })
    }

    /// Returns one of the matrices that the tensor `name` stacks along its outermost dimension. Makes no other.
    pub(crate) fn stacked(&self, name: &str, index: usize) -> Result<Tensor<'_>, CheckpointError> {
        if let Some((name, recipe)) = self.recipes.get_key_value(name) {
            let made = recipe.as_ref().map_err(Clone::clone);
            let find = |name: &str| self.stored(name);
            let made = made.and_then(|recipe| Ok((recipe, recipe.stacked_bytes(index, &find)?)));
            let (recipe, bytes) = made.map_err(|fault| self.of_fault(&fault))?;
            let shape = recipe.shape.get(1..).unwrap_or_default();
            return Ok(Tensor { name, dtype: recipe.dtype, shape, bytes: Cow::Owned(bytes) });
        }
        let Tensor { name, dtype, shape, bytes } = self.tensor(name)?;
        let count = shape.first().copied().unwrap_or(0);
        let part = match &bytes {
            Cow::Borrowed(bytes) => stacked_part(bytes, index, count).map(Cow::Borrowed),
            Cow::Owned(bytes) => stacked_part(bytes, index, count).map(|part| Cow::Owned(part.to_vec())),
        };
        let bytes = part.ok_or_else(|| {
            tensor_error(&self.listed_in, name, "shape", format!("is {shape:?}, which has no part {index}"))
        })?;
        Ok(Tensor { name, dtype, shape: shape.get(1..).unwrap_or_default(), bytes })
    }

    /// The element type of a tensor that [`Weights::tensor`] returns. `None` if there is no such tensor, or if its type is
    /// not supported.
    pub(crate) fn dtype(&self, name: &str) -> Option<DType> {
        match self.recipes.get(name) {
            Some(recipe) => recipe.as_ref().ok().map(|recipe| recipe.dtype),
            None => self.tensors.get(name).and_then(Stored::dtype),
        }
    }

    /// Finds the matrices that `scheme` stores in several tensors. To be called again if tensors are renamed.
    pub(crate) fn find_recipes(&mut self, scheme: Option<WeightScheme>) {
        self.recipes.clear();
        if let Some(scheme) = &scheme {
            let find = |name: &str| self.stored(name);
            let made = |(name, stored): (&String, &Stored)| {
                let matrix = MatrixRecipe::matrix_of(scheme, name, stored.element.0)?;
                let recipe = match matrix != *name && self.tensors.contains_key(&matrix) {
                    true => Err(RecipeFault {
                        tensor: matrix.clone(),
                        field: "presence",
                        problem: format!("is there, and so is \"{name}\"; one of them is needed"),
                    }),
                    false => MatrixRecipe::read(scheme, name, &find),
                };
                Some((matrix, recipe))
            };
            self.recipes = self.tensors.iter().filter_map(made).collect();
        }
        self.scheme = scheme;
    }

    /// A tensor as its file stores it.
    fn stored(&self, name: &str) -> Option<StoredTensor<'_>> {
        let stored = self.tensors.get(name)?;
        let bytes = self.files.get(stored.file)?.contents.get(stored.range.clone())?;
        Some(StoredTensor { element: stored.element.0, shape: &stored.shape, bytes })
    }

    /// The error for a matrix that cannot be made.
    fn of_fault(&self, fault: &RecipeFault) -> CheckpointError {
        let RecipeFault { tensor, field, problem } = fault;
        match self.tensors.get(tensor) {
            Some(stored) => {
                tensor_error(self.file_name(stored), stored.shown_as(tensor), field, problem.clone())
            }
            None => tensor_error(&self.listed_in, tensor, field, problem.clone()),
        }
    }

    /// Bytes of all tensors as [`Weights::tensor`] returns them.
    pub(crate) fn made_bytes(&self) -> u64 {
        let made = || self.recipes.values().filter_map(|recipe| recipe.as_ref().ok());
        let sources = made().flat_map(|recipe| &recipe.sources).filter_map(|name| self.tensors.get(name));
        let stored = self.bytes().saturating_sub(sources.map(|stored| stored.range.len() as u64).sum());
        made().fold(stored, |sum, recipe| sum.saturating_add(recipe.made_bytes()))
    }

    /// Name, type as a table of types shows it, dimensions and stored bytes of every tensor, sorted by name. A matrix
    /// that is made from several tensors is one entry.
    pub(crate) fn listed(&self) -> Vec<(&str, &'static str, &[usize], u64)> {
        let made = || self.recipes.iter().filter_map(|(name, recipe)| Some((name, recipe.as_ref().ok()?)));
        let sources: BTreeSet<&str> =
            made().flat_map(|(_, recipe)| &recipe.sources).map(String::as_str).collect();
        let bytes = |name: &str| self.tensors.get(name).map_or(0, |stored| stored.range.len() as u64);
        let matrices = made().map(|(name, recipe)| {
            let stored = recipe.sources.iter().map(|source| bytes(source)).sum::<u64>();
            (name.as_str(), recipe.label, recipe.shape.as_slice(), stored)
        });
        let plain = self.tensors.iter().filter(|(name, _)| !sources.contains(name.as_str()));
        let plain = plain.map(|(name, stored)| {
            (name.as_str(), stored.element.0, stored.shape.as_slice(), stored.range.len() as u64)
        });
        let mut all: Vec<_> = matrices.chain(plain).collect();
        all.sort_unstable_by_key(|(name, ..)| *name);
        all
    }

    /// Size of all tensors together, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|stored| stored.range.len() as u64).sum()
    }

    /// Checks every tensor that `config` calls for, and that no tensor contradicts it.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<(), CheckpointError> {
        for tensor in config.global_tensors() {
            self.check_one(&tensor.into())?;
        }
        for layer in &config.layers {
            let tensors = layer.tensors();
            for tensor in &tensors {
                self.check_one(&Required::from(*tensor))?;
            }
            let unused = layer.unused_tensors();
            let known = tensors.iter().chain(&unused).map(|tensor| tensor.name.as_str()).collect();
            self.check_contradictions(&layer.prefix, &known)?;
            self.check_transposed(layer)?;
        }
        Ok(())
    }

    /// Whether the checkpoint has a tensor. Quantized matrices count as present, because their shape is not stored.
    pub(crate) fn fit(&self, tensor: &TensorSpec) -> TensorFit {
        match self.tensors.get(&tensor.name) {
            Some(stored) if stored.shape == tensor.shape => TensorFit::Present,
            _ if self.recipes.contains_key(&tensor.name) => TensorFit::Present,
            Some(_) => TensorFit::OtherShape,
            None => TensorFit::Absent,
        }
    }

    /// Refuses a quantized matrix whose rows the architecture stores as columns: blocks go along the rows.
    fn check_transposed(&self, layer: &LayerConfig) -> Result<(), CheckpointError> {
        for linear in layer.matrices().into_iter().flatten() {
            let name = &linear.weight.tensor.name;
            let is_quantized =
                self.recipes.contains_key(name) || matches!(self.dtype(name), Some(DType::Block(_)));
            if is_quantized && matches!(linear.weight.pick, RowPick::Transposed { .. }) {
                let problem = format!(
                    "is quantized, and this architecture stores the matrix as inputs × outputs, which is read in {}; take a \
                     copy of the model that is not quantized",
                    inventory::SUPPORTED_DTYPES
                );
                let recipe = self.recipes.get(name).and_then(|recipe| recipe.as_ref().ok());
                let codes = recipe.and_then(|recipe| recipe.sources.first()).unwrap_or(name);
                return Err(self.of_fault(&RecipeFault { tensor: codes.clone(), field: "dtype", problem }));
            }
        }
        Ok(())
    }

    /// Refuses a tensor of a layer that is not among the `known` ones and would change the output.
    fn check_contradictions(&self, prefix: &str, known: &BTreeSet<&str>) -> Result<(), CheckpointError> {
        let tensors = self.tensors.range(prefix.to_owned()..).map_while(|(name, stored)| {
            let part = name.strip_prefix(prefix)?;
            Some((name.as_str(), part, stored))
        });
        for (name, part, stored) in tensors {
            let why = if known.contains(name) { None } else { inventory::contradiction(part) };
            if let Some(why) = why {
                let problem = format!("is there, but {} contradicts it: {why}", self.called_for_by);
                let (file, name) = (self.file_name(stored), stored.shown_as(name));
                return Err(tensor_error(file, name, "presence", problem));
            }
        }
        Ok(())
    }

    /// Checks one required tensor.
    pub(crate) fn check_one(&self, required: &Required) -> Result<(), CheckpointError> {
        let Required { name, shape, fields } = required;
        let by = self.called_for_by;
        if let Some(recipe) = self.recipes.get(name) {
            let recipe = recipe.as_ref().map_err(|fault| self.of_fault(fault))?;
            if recipe.shape == *shape {
                return Ok(());
            }
            let problem = format!("is {:?}, but {by} says {shape:?}, {fields}", recipe.shape);
            let codes = recipe.sources.first().unwrap_or(name);
            let fault = RecipeFault { tensor: codes.clone(), field: "shape", problem };
            return Err(self.of_fault(&fault));
        }
        let Some(stored) = self.tensors.get(name) else {
            let hint = match name.as_str() {
                "lm_head.weight" => " (for a model without it, tie_word_embeddings must be true)",
                _ if self.scheme.is_some() && shape.len() == 2 => {
                    ", and there is no quantized matrix of that name either"
                }
                _ => "",
            };
            let problem = format!("is missing; {by} calls for shape {shape:?}, {fields}{hint}");
            let alias = self.aliases.get(name).unwrap_or(name);
            return Err(tensor_error(&self.listed_in, alias, "presence", problem));
        };
        let refuse =
            |field, problem| tensor_error(self.file_name(stored), stored.shown_as(name), field, problem);
        if let (spelled, None) = stored.element {
            return Err(refuse("dtype", self.not_supported(spelled)));
        }
        if stored.shape != *shape {
            let problem = format!("is {:?}, but {by} says {shape:?}, {fields}", stored.shape);
            return Err(refuse("shape", problem));
        }
        if let (1, (spelled, Some(DType::Block(_)))) = (shape.len(), stored.element) {
            return Err(refuse(
                "dtype",
                format!("{spelled} is for matrices; for vectors, F32, F16 and BF16 are"),
            ));
        }
        // Checks everything but the bytes, which are read on demand.
        match stored.order.is_none_or(|order| order.fits(shape)) {
            true => Ok(()),
            false => Err(refuse("shape", format!("{shape:?} has no rows and columns of whole heads"))),
        }
    }

    /// Renames tensors by `new_name`. Tensors for which it returns `None` keep their names.
    pub(crate) fn rename(&mut self, new_name: impl Fn(&str) -> Option<String>) {
        let stored = std::mem::take(&mut self.tensors);
        self.tensors = stored
            .into_iter()
            .map(|(name, mut stored)| match new_name(&name) {
                Some(other) => {
                    stored.alias.get_or_insert(name);
                    (other, stored)
                }
                None => (name, stored),
            })
            .collect();
        let scheme = self.scheme.take();
        self.find_recipes(scheme);
    }

    pub(crate) fn identify(&self, identity: &mut Identity) {
        for file in &self.files {
            let header = file.contents.get(..file.header_bytes).unwrap_or_default();
            identity.add(&file.known_as, header);
        }
        for (name, stored) in &self.tensors {
            let bytes = self.files.get(stored.file).and_then(|file| file.contents.get(stored.range.clone()));
            identity.add_sample(name, bytes.unwrap_or_default());
        }
    }

    /// Why an element type of the files is refused.
    fn not_supported(&self, spelled: &str) -> String {
        inventory::not_supported(spelled, self.supported)
    }

    fn file_name(&self, stored: &Stored) -> &str {
        self.files.get(stored.file).map_or(self.listed_in.as_str(), |file| &file.name)
    }
}

impl Stored {
    /// The type of the tensor's elements. `None` if it is not supported.
    fn dtype(&self) -> Option<DType> {
        self.element.1
    }

    /// The tensor's name in the file, for messages.
    fn shown_as<'n>(&'n self, name: &'n str) -> &'n str {
        self.alias.as_deref().unwrap_or(name)
    }
}

pub(crate) fn tensor_error(
    file: &str,
    tensor: &str,
    field: &'static str,
    problem: String,
) -> CheckpointError {
    CheckpointError::Tensor { file: file.to_owned(), tensor: shown(tensor), field, problem }
}
