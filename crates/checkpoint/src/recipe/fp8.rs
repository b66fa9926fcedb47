//! Matrices of FP8 (e4m3): `X.weight` with `X.weight_scale_inv` or `X.weight_scale`. A weight is its code's value times
//! the scale of its tile, row or matrix.

use headrace_quant::{BlockType, E4m3Matrix, ScaleType};

use crate::scheme::Fp8Scheme;

use super::stored::{Find, RecipeFault, fault, needed, of_values, scale_type};

/// The element type of the codes.
pub(super) const ELEMENT: &str = "F8_E4M3";
/// The end of the name of a matrix.
const CODES: &str = ".weight";
/// The ends of the names of scales. Despite the first one's name, both are factors of the codes.
const SCALES: [&str; 2] = [".weight_scale_inv", ".weight_scale"];

/// The tensors of one matrix, and the tiles of its scales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fp8Matrix {
    /// Rows and columns.
    pub(super) shape: [usize; 2],
    /// Name of the tensor of codes.
    pub(super) codes: String,
    /// Name of the tensor of scales.
    pub(super) scales: String,
    scale_type: ScaleType,
    /// Rows and columns that share a scale.
    tile: [usize; 2],
}

/// Returns whether a tensor holds the codes of a matrix. Includes 8-bit floats that are not read.
pub(super) fn is_matrix(name: &str, element: &str) -> bool {
    name.ends_with(CODES) && element.starts_with("F8_")
}

impl Fp8Matrix {
    /// Reads the recipe of the matrix `name`.
    pub(super) fn read(scheme: &Fp8Scheme, name: &str, find: Find<'_, '_>) -> Result<Self, RecipeFault> {
        let codes = needed(find, name, name)?;
        if codes.element != ELEMENT {
            let problem = format!("{} is not supported; of 8-bit floats, {ELEMENT} is", codes.element);
            return Err(fault(name, "dtype", problem));
        }
        let shape = match *codes.shape {
            [rows, columns] if rows > 0 && columns > 0 => [rows, columns],
            _ => return Err(fault(name, "shape", format!("is {:?}, which is no matrix", codes.shape))),
        };
        let module = name.strip_suffix(CODES).unwrap_or(name);
        let names = SCALES.map(|end| format!("{module}{end}"));
        let [first, second] = &names;
        let (scales, found) = match (find(first), find(second)) {
            (Some(found), None) => (first, found),
            (None, Some(found)) => (second, found),
            (None, None) => return Err(fault(first, "presence", format!("is missing; \"{name}\" needs it"))),
            (Some(_), Some(_)) => {
                let problem = format!("is there, and so is \"{second}\"; one of them is needed");
                return Err(fault(first, "presence", problem));
            }
        };
        let scale_type = scale_type(scales, found)?;
        let tile = tile_of(scheme, found.shape, shape).ok_or_else(|| {
            let problem =
                format!("is {:?}; \"{name}\" of {shape:?} takes {}", found.shape, grids(scheme, shape));
            fault(scales, "shape", problem)
        })?;
        Ok(Self { shape, codes: name.to_owned(), scales: scales.clone(), scale_type, tile })
    }

    /// The block format that holds the rows without loss. `None` for f32.
    pub(super) fn block(&self) -> Option<BlockType> {
        let ([_, columns], [_, tile_columns]) = (self.shape, self.tile);
        E4m3Matrix::block_type(columns, tile_columns)
    }

    /// Makes the rows, as blocks or as f32.
    pub(super) fn bytes(&self, find: Find<'_, '_>) -> Result<Vec<u8>, RecipeFault> {
        let codes = needed(find, &self.codes, &self.codes)?.bytes;
        let scales = needed(find, &self.scales, &self.codes)?.bytes;
        let ([_, columns], [tile_rows, tile_columns]) = (self.shape, self.tile);
        let scale_type = self.scale_type;
        let matrix = E4m3Matrix { codes, columns, scales, scale_type, tile_rows, tile_columns };
        let made = if self.block().is_some() { matrix.to_blocks() } else { matrix.to_floats() };
        made.map_err(|error| of_values(error, &self.codes, &self.scales))
    }
}

/// Returns the rows and columns that share a scale, from the shape of the scales.
fn tile_of(scheme: &Fp8Scheme, scales: &[usize], [rows, columns]: [usize; 2]) -> Option<[usize; 2]> {
    let fits = |tile: &&[usize; 2]| *scales == [rows.div_ceil(tile[0]), columns.div_ceil(tile[1])];
    scheme.tiles.iter().find(fits).copied().or(match *scales {
        [] | [1] | [1, 1] => Some([rows, columns]),
        [each] | [each, 1] if each == rows => Some([1, columns]),
        _ => None,
    })
}

/// Returns the shapes that scales may have, for a message.
fn grids(scheme: &Fp8Scheme, [rows, columns]: [usize; 2]) -> String {
    let of_tile = |[r, c]: &[usize; 2]| {
        format!("{:?} for tiles of {r} × {c}", [rows.div_ceil(*r), columns.div_ceil(*c)])
    };
    let tiles = scheme.tiles.iter().map(of_tile);
    let all = tiles.chain([format!("[{rows}, 1] for its rows"), "[1] for the whole".to_owned()]);
    all.collect::<Vec<_>>().join(", ")
}
