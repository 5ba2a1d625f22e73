//! Recipes by which weights are assembled from ranges of files.

use crate::DType;
use crate::derived::Derivation;
use crate::remote::Stretch;
use crate::tensor::{Data, Tensor, checked_numel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// The maximum number of bytes of a [`Part`].
pub const PART_BYTES: u64 = 16 << 20;
/// The minimum number of bytes of a row of a column: each row is a separate write to the device.
const LEAST_ROW: usize = 512;

/// The locations of the bytes of the weights. See the example of [`Recipe`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipes {
    /// The files to which the parts belong.
    pub files: Vec<SourceFile>,
    /// The recipe of each weight, by name.
    pub tensors: BTreeMap<String, Recipe>,
}

/// A file that holds bytes of weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// A path or URL relative to the plan; empty for the file that contains the plan.
    pub name: String,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The SHA-256 of the whole file, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// The parts from which a weight is assembled.
///
/// The parts of a column, one after the other, form `rows` rows of equal size. A row of the tensor consists of that
/// row of each column in turn. With one row, the parts are simply concatenated.
///
/// ```
/// use wgfc_program::recipe::{Recipe, SourceFile};
/// use wgfc_program::{DType, Tensor};
/// // The weight is 16 bytes of file 0, from byte 64 on.
/// let recipe = Recipe::whole(&Tensor::zeros(DType::F32, vec![4]), 0, 64);
/// assert_eq!((recipe.parts[0].offset, recipe.parts[0].bytes), (64, 16));
/// let file = |bytes| SourceFile { name: "model.onnx".to_owned(), bytes, sha256: None };
/// assert_eq!(recipe.columns(&[file(100)]), Ok(vec![0..1]));
/// assert!(recipe.columns(&[file(70)]).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The type of the elements in the files, if it differs: f32, which is rounded to the nearest f16, ties to even.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<DType>,
    /// How the bytes are made of those of the parts, if they are not the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derived: Option<Blocks>,
    /// The number of rows of each column.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rows: u64,
    /// The parts, column by column.
    pub parts: Vec<Part>,
}

/// A [`Derivation`], as a recipe names it. The parts consist of whole blocks, in one row.
/// See the example of [`Recipe::of_blocks`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// The name of the derivation.
    pub name: String,
    /// The number of bytes of a block in the parts.
    pub block: u64,
    /// The number of bytes that a block makes.
    pub makes: u64,
}

impl Blocks {
    fn of(d: &Derivation) -> Blocks {
        Blocks { name: d.name.to_owned(), block: d.block as u64, makes: d.makes as u64 }
    }

    /// The derivation.
    ///
    /// # Errors
    /// It is not known, or has blocks of other sizes.
    pub fn derivation(&self) -> Result<Derivation, String> {
        let known = Derivation::named(&self.name).filter(|d| Blocks::of(d) == *self);
        known.ok_or_else(|| {
            let Blocks { name, block, makes } = self;
            format!("how `{name}` makes {makes} bytes of blocks of {block} is not known here")
        })
    }
}

/// A range of a file that holds whole rows of a column. See the example of [`Recipe`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The column, counted from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub column: usize,
    /// An index into [`Recipes::files`].
    pub file: usize,
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The number of bytes, from 1 to [`PART_BYTES`].
    pub bytes: u64,
    /// The SHA-256 of these bytes, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

fn one() -> u64 {
    1
}

fn is_one(n: &u64) -> bool {
    *n == 1
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Recipe {
    /// The type of the elements in the files.
    pub fn stored(&self) -> DType {
        self.from.unwrap_or(self.dtype)
    }

    /// A recipe with one range of a file that holds all bytes of a tensor.
    pub fn whole(t: &Tensor, file: usize, offset: u64) -> Recipe {
        let bytes = t.byte_len().unwrap_or(0) as u64;
        let part = Part { column: 0, file, offset, bytes, sha256: None };
        Recipe {
            dtype: t.dtype,
            shape: t.shape.clone(),
            from: None,
            derived: None,
            rows: 1,
            parts: part.cut(1).collect(),
        }
    }

    /// The recipe of a tensor made of stretches whose file and offset `place` knows. `None` if `place` does not know
    /// one of them, or they have fewer than `least` bytes on average.
    ///
    /// ```
    /// use wgfc_program::remote::Stretch;
    /// use wgfc_program::{Tensor, recipe::Recipe};
    /// let t = Tensor::from_f32(vec![256], &[1.0; 256]);
    /// // All bytes are in file 0, from byte 4096 on.
    /// let place = |s: Stretch<'_>| matches!(s, Stretch::Here(_)).then_some((0, 4096));
    /// let recipe = Recipe::find(&t, 512, place).unwrap();
    /// assert_eq!(recipe.parts[0].offset, 4096);
    /// # assert_eq!(recipe.stored(), t.dtype);
    /// ```
    pub fn find<'t>(
        t: &'t Tensor,
        least: usize,
        place: impl Fn(Stretch<'t>) -> Option<(usize, u64)>,
    ) -> Option<Recipe> {
        // Bytes that are made of blocks are for `of_blocks`.
        if t.is_derived() {
            return None;
        }
        if let Data::Halved(h) = &t.data {
            let of = Recipe::find(h.of(), least, place)?;
            // Each part must consist of whole elements.
            let whole = of.parts.iter().all(|p| p.bytes.is_multiple_of(4));
            return whole.then(|| Recipe {
                dtype: t.dtype,
                shape: t.shape.clone(),
                from: Some(of.dtype),
                ..of
            });
        }
        let (rows, columns) = t.columns();
        let mut all = vec![];
        for (column, c) in columns.iter().enumerate() {
            let len = c.byte_len()?;
            let row = len / rows;
            if rows > 1 && (row < LEAST_ROW || !row.is_multiple_of(4) || row as u64 > PART_BYTES) {
                return None;
            }
            // Each part must consist of whole rows.
            let unit = if rows > 1 { row as u64 } else { 1 };
            all.extend(parts(c, column, least, unit, &place)?);
        }
        let (dtype, shape) = (t.dtype, t.shape.clone());
        Some(Recipe { dtype, shape, from: None, derived: None, rows: rows as u64, parts: all })
    }

    /// The recipe of a tensor whose bytes one derivation makes of stretches whose file and offset `place` knows, as for [`Recipe::find`].
    ///
    /// ```
    /// use wgfc_program::derived::Derivation;
    /// use wgfc_program::{DType, Tensor, recipe::Recipe};
    /// // The scales of 64 blocks of Q8_0, which are in file 0 from byte 4096 on.
    /// let blocks = Tensor::zeros(DType::U8, vec![64 * 34]);
    /// let scales = blocks.derived(Derivation::named("q8_0_scales").unwrap(), DType::F16, vec![64])?;
    /// let recipe = Recipe::of_blocks(&scales, 512, |_| Some((0, 4096))).unwrap();
    /// assert_eq!((recipe.derived.unwrap().block, recipe.parts[0].bytes), (34, 64 * 34));
    /// # Ok::<(), String>(())
    /// ```
    pub fn of_blocks(
        t: &Tensor,
        least: usize,
        place: impl Fn(Stretch<'_>) -> Option<(usize, u64)>,
    ) -> Option<Recipe> {
        let (how, of) = t.underived()?;
        let parts = parts(&of, 0, least, how.block as u64, &place)?;
        let (dtype, shape, derived) = (t.dtype, t.shape.clone(), Some(Blocks::of(&how)));
        Some(Recipe { dtype, shape, from: None, derived, rows: 1, parts })
    }

    /// For each column, the range of its parts.
    ///
    /// # Errors
    /// Describes an invalid recipe: a shape that overflows, parts that lie outside of their files, are out of order or
    /// do not consist of whole rows, or parts whose bytes are not those that shape and type need.
    pub fn columns(&self, files: &[SourceFile]) -> Result<Vec<Range<usize>>, String> {
        let n = checked_numel(&self.shape).ok_or_else(|| format!("shape {:?} overflows", self.shape))?;
        if let Some(from) = self.from.filter(|from| (*from, self.dtype) != (DType::F32, DType::F16)) {
            return Err(format!("elements of {from} are not made into {}, only f32 into f16", self.dtype));
        }
        let stored = self.stored();
        let mut need = stored.bytes_for(n) as u64;
        if let Some(blocks) = &self.derived {
            let how = blocks.derivation()?;
            if self.from.is_some() || self.rows != 1 || !need.is_multiple_of(how.makes as u64) {
                return Err(format!(
                    "{stored}{:?} cannot be made of blocks as `{}` does",
                    self.shape, how.name
                ));
            }
            if let Some(p) = self.parts.iter().find(|p| !p.bytes.is_multiple_of(how.block as u64)) {
                return Err(format!("a part of {} bytes has no whole blocks of {}", p.bytes, how.block));
            }
            need = (need / how.makes as u64).saturating_mul(how.block as u64);
        }
        let all = files.iter().fold(0u64, |n, f| n.saturating_add(f.bytes));
        if need > all {
            return Err(format!("it has {need} bytes, and all files together {all}"));
        }
        let mut columns: Vec<Range<usize>> = vec![];
        for (i, p) in self.parts.iter().enumerate() {
            p.check(files).map_err(|e| format!("parts[{i}]: {e}"))?;
            match columns.len() {
                n if p.column == n => columns.push(i..i + 1),
                n if n > 0 && p.column == n - 1 => columns[p.column].end = i + 1,
                n => {
                    return Err(format!("parts[{i}]: column {} where column {n} is the next", p.column));
                }
            }
        }
        let sum = |parts: &[Part]| parts.iter().fold(0u64, |n, p| n.saturating_add(p.bytes));
        let have = sum(&self.parts);
        if have != need {
            return Err(format!("{stored}{:?} needs {need} bytes, its parts have {have}", self.shape));
        }
        if let Some(p) = self.parts.iter().find(|p| self.from.is_some() && !p.bytes.is_multiple_of(4)) {
            return Err(format!("a part of {} bytes has no whole number of elements of {stored}", p.bytes));
        }
        for (i, c) in columns.iter().enumerate() {
            let bytes = sum(&self.parts[c.clone()]);
            let row = bytes.checked_div(self.rows).filter(|r| r.saturating_mul(self.rows) == bytes);
            let Some(row) = row else {
                return Err(format!("column {i} has {bytes} bytes, which are not {} equal rows", self.rows));
            };
            let odd = self.parts[c.clone()].iter().find(|p| self.rows > 1 && !p.bytes.is_multiple_of(row));
            if let Some(p) = odd {
                return Err(format!("column {i} has a part of {} bytes, and rows of {row}", p.bytes));
            }
        }
        Ok(columns)
    }
}

/// The parts of a column, of whole units of bytes.
fn parts<'t>(
    t: &'t Tensor,
    column: usize,
    least: usize,
    unit: u64,
    place: &impl Fn(Stretch<'t>) -> Option<(usize, u64)>,
) -> Option<Vec<Part>> {
    let len = t.byte_len()?;
    let mut parts: Vec<Part> = vec![];
    for s in t.stretches(0..len).filter(|s| !s.is_empty()) {
        let bytes = s.len() as u64;
        let (file, offset) = place(s)?;
        match parts.last_mut() {
            Some(p) if p.file == file && p.offset + p.bytes == offset => p.bytes += bytes,
            _ => parts.push(Part { column, file, offset, bytes, sha256: None }),
        }
        if parts.len() > len / least + 1 {
            return None;
        }
    }
    let whole = parts.iter().all(|p| p.bytes.is_multiple_of(unit));
    let all = whole && parts.iter().map(|p| p.bytes).sum::<u64>() == len as u64;
    all.then(|| parts.into_iter().flat_map(|p| p.cut(unit)).collect())
}

impl Part {
    /// Splits this part into parts of at most [`PART_BYTES`] bytes, each a multiple of `unit`, which must not exceed
    /// that.
    fn cut(self, unit: u64) -> impl Iterator<Item = Part> {
        let most = PART_BYTES / unit * unit;
        let end = self.offset + self.bytes;
        let starts = (self.offset..end).step_by(most as usize);
        starts.map(move |offset| Part { offset, bytes: most.min(end - offset), ..self.clone() })
    }

    fn check(&self, files: &[SourceFile]) -> Result<(), String> {
        let file = files.get(self.file).ok_or_else(|| format!("there is no file {}", self.file))?;
        if self.bytes == 0 || self.bytes > PART_BYTES {
            return Err(format!("it has {} bytes, not between 1 and {PART_BYTES}", self.bytes));
        }
        if self.offset.checked_add(self.bytes).is_none_or(|end| end > file.bytes) {
            let (at, n) = (self.offset, self.bytes);
            return Err(format!(
                "{n} bytes from {at} are outside of file {} ({} bytes)",
                self.file, file.bytes
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn files(bytes: u64) -> Vec<SourceFile> {
        vec![SourceFile { name: "w".into(), bytes, sha256: None }]
    }

    /// A file of `n` bytes, and a function that makes tensors from rows of `width` bytes in it.
    fn file(n: usize) -> (Arc<Vec<u8>>, impl Fn(usize, usize, usize) -> Tensor) {
        let all = Arc::new((0..n).map(|i| (i * 7 + i / 256) as u8).collect::<Vec<u8>>());
        let owner = all.clone();
        let of = move |at: usize, rows: usize, width: usize| {
            Tensor::shared(DType::U8, vec![rows, width], owner.clone(), at, rows * width).unwrap()
        };
        (all, of)
    }

    fn found(t: &Tensor, all: &[u8]) -> Option<Recipe> {
        Recipe::find(t, 1 << 10, |s| match s {
            Stretch::Here(b) => {
                let at = (b.as_ptr() as usize).wrapping_sub(all.as_ptr() as usize);
                (at < all.len()).then_some((0, at as u64))
            }
            Stretch::There { .. } => None,
        })
    }

    /// The bytes that a recipe assembles.
    fn cooked(r: &Recipe, all: &[u8]) -> Vec<u8> {
        let columns = r.columns(&files(all.len() as u64)).unwrap();
        let mut columns: Vec<(Vec<u8>, usize)> = columns
            .into_iter()
            .map(|c| {
                let parts = r.parts[c].iter();
                let bytes = parts.flat_map(|p| &all[p.offset as usize..(p.offset + p.bytes) as usize]);
                let bytes: Vec<u8> = bytes.copied().collect();
                let row = bytes.len() / r.rows as usize;
                (bytes, row)
            })
            .collect();
        let mut out = vec![];
        for _ in 0..r.rows {
            for (bytes, row) in &mut columns {
                out.extend(bytes.drain(..*row));
            }
        }
        out
    }

    #[test]
    fn tensors_side_by_side_are_columns() {
        let (all, of) = file(1 << 16);
        let (a, b, c) = (of(64, 8, 1024), of(20000, 8, 512), of(40000, 3, 1024));
        let joined = Tensor::joined(&[&a, &b, &a], 1).unwrap();
        let r = found(&joined, &all).unwrap();
        assert_eq!((r.rows, r.parts.len(), r.parts[1].column), (8, 3, 1));
        assert_eq!(cooked(&r, &all), joined.bytes().unwrap());
        // A column made of two stretches.
        let tall = Tensor::joined(&[&a, &c], 0).unwrap();
        let wide = Tensor::joined(&[&tall, &of(50000, 11, 512)], 1).unwrap();
        let r = found(&wide, &all).unwrap();
        assert_eq!(r.parts.iter().map(|p| p.column).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!(cooked(&r, &all), wide.bytes().unwrap());
        let r = found(&tall, &all).unwrap();
        assert_eq!((r.rows, r.parts.len()), (1, 2));
        assert_eq!(cooked(&r, &all), tall.bytes().unwrap());
        assert_eq!(found(&a, &all), Some(Recipe::whole(&a, 0, 64)));
    }

    #[test]
    fn what_is_rounded_refers_to_what_it_is_of() {
        let owner = Arc::new(vec![0u8; 1 << 16]);
        let of = |at: usize, columns: usize| {
            Tensor::shared(DType::F32, vec![8, columns], owner.clone(), at, 32 * columns).unwrap()
        };
        let joined = Tensor::joined(&[&of(64, 256), &of(20000, 128)], 1).unwrap();
        for t in [of(4, 300), joined] {
            let (own, half) = (found(&t, &owner).unwrap(), found(&t.in_half(), &owner).unwrap());
            assert_eq!(half, Recipe { dtype: DType::F16, from: Some(DType::F32), ..own });
            assert!(half.columns(&files(1 << 16)).is_ok());
        }
    }

    #[test]
    fn planes_of_blocks_refer_to_the_blocks() {
        let (all, of) = file(1 << 16);
        let how = Derivation::named("q8_0_elements").unwrap();
        let plane = |t: &Tensor| {
            let rows = t.byte_len().unwrap() / how.block;
            t.derived(how, DType::I8, vec![rows, 32]).unwrap()
        };
        let (a, b) = (plane(&of(64, 40, 34)), plane(&of(20000, 64, 34)));
        let joined = Tensor::joined(&[&a, &b], 0).unwrap();
        let place = |s: Stretch<'_>| match s {
            Stretch::Here(b) => Some((0, (b.as_ptr() as usize - all.as_ptr() as usize) as u64)),
            Stretch::There { .. } => None,
        };
        for (t, parts) in [(&a, 1), (&joined, 2), (&a.flat_slice(32 * 8, 32 * 20), 1)] {
            let r = Recipe::of_blocks(t, 1 << 9, place).unwrap();
            assert_eq!((found(t, &all), r.parts.len(), r.rows), (None, parts, 1));
            let columns = r.columns(&files(1 << 16)).unwrap();
            assert_eq!(columns.len(), 1);
            let source: Vec<u8> =
                r.parts.iter().flat_map(|p| &all[p.offset as usize..][..p.bytes as usize]).copied().collect();
            let mut made = vec![0; source.len() / 34 * 32];
            (r.derived.as_ref().unwrap().derivation().unwrap().make)(&source, &mut made);
            assert_eq!(made, t.bytes().unwrap());
        }
        assert!(Recipe::of_blocks(&of(0, 1, 64), 1 << 9, place).is_none());
        let mut other = Recipe::of_blocks(&a, 1 << 9, place).unwrap();
        other.derived.as_mut().unwrap().makes = 31;
        assert!(other.columns(&files(1 << 16)).unwrap_err().contains("is not known here"));
        let mut short = Recipe::of_blocks(&a, 1 << 9, place).unwrap();
        short.parts[0].bytes -= 1;
        assert!(short.columns(&files(1 << 16)).unwrap_err().contains("no whole blocks"));
    }

    #[test]
    fn many_small_rows_and_other_memory_are_copied() {
        let (all, of) = file(1 << 16);
        let (a, b) = (of(0, 16, 1024), of(30000, 16, 256));
        assert_eq!(found(&Tensor::joined(&[&a, &b], 1).unwrap(), &all), None);
        assert_eq!(found(&Tensor::zeros(DType::U8, vec![4096]), &all), None);
    }

    #[test]
    fn parts_are_cut_between_rows() {
        let t = Tensor::absent(DType::U8, vec![1]);
        assert_eq!(Recipe::whole(&t, 0, 0).parts, []);
        let part = Part { column: 0, file: 0, offset: 5, bytes: 2 * PART_BYTES + 1, sha256: None };
        let ends: Vec<(u64, u64)> = part.clone().cut(1).map(|p| (p.offset, p.bytes)).collect();
        assert_eq!(ends, [(5, PART_BYTES), (5 + PART_BYTES, PART_BYTES), (5 + 2 * PART_BYTES, 1)]);
        let rows = Part { bytes: 9000 * 4000, ..part };
        assert!(rows.cut(9000).all(|p| p.bytes.is_multiple_of(9000) && p.bytes <= PART_BYTES));
    }

    #[test]
    fn bad_recipes_are_refused() {
        let part = |column, bytes| Part { column, file: 0, offset: 0, bytes, sha256: None };
        let recipe = |rows, parts| Recipe {
            dtype: DType::U8,
            shape: vec![4, 6],
            from: None,
            derived: None,
            rows,
            parts,
        };
        for (rows, parts, said) in [
            (4, vec![part(0, 16), part(1, 8)], ""),
            (1, vec![part(0, 16), part(0, 8)], ""),
            (4, vec![part(1, 24)], "is the next"),
            (4, vec![part(0, 8), part(1, 8), part(0, 8)], "is the next"),
            (4, vec![part(0, 10), part(1, 14)], "equal rows"),
            (4, vec![part(0, 6), part(0, 10), part(1, 8)], "rows of 4"),
            (0, vec![part(0, 24)], "equal rows"),
            (u64::MAX, vec![part(0, 24)], "equal rows"),
            (1, vec![part(0, 23)], "its parts have 23"),
            (1, vec![part(0, 24), part(usize::MAX, 1)], "is the next"),
        ] {
            let columns = recipe(rows, parts).columns(&files(100));
            assert_eq!(columns.as_ref().err().is_none(), said.is_empty(), "{columns:?}");
            assert!(columns.as_ref().err().is_none_or(|e| e.contains(said)), "{columns:?}");
        }
        let cast = |dtype, from, parts| Recipe {
            dtype,
            shape: vec![2, 3],
            from: Some(from),
            derived: None,
            rows: 1,
            parts,
        };
        use DType::{F16, F32, I32};
        for (recipe, said) in [
            (cast(F16, F32, vec![part(0, 8), part(0, 16)]), ""),
            (cast(F16, F32, vec![part(0, 12)]), "f32[2, 3] needs 24 bytes, its parts have 12"),
            (cast(F16, F32, vec![part(0, 10), part(0, 14)]), "no whole number of elements"),
            (cast(F16, I32, vec![part(0, 24)]), "elements of i32 are not made into f16"),
            (cast(F32, F16, vec![part(0, 12)]), "elements of f16 are not made into f32"),
        ] {
            let e = recipe.columns(&files(100)).err().unwrap_or_default();
            assert!(e.is_empty() == said.is_empty() && e.contains(said), "{e}");
        }
    }
}
