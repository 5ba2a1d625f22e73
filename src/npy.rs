//! Tensors as NumPy `.npy` files.
//!
//! NumPy has no types for bf16, 8-bit and 4-bit floats, and integers below 8 bits. Such tensors are written in a NumPy type
//! that holds every value exactly (`f32`, `i8`, `u8`); [`fit`] converts them back.

use crate::files::map_file;
use crate::output::write_whole;
use crate::{Error, Problem, memory};
use std::path::Path;
use wgfc_compiler::Diagnostic;
use wgfc_compiler::budget::Budget;
use wgfc_ir::tensor::{checked_numel, gathered};
use wgfc_ir::{DType, Scalar, Tensor};

/// The NumPy type that stores `dtype` bit for bit; `None` if there is none.
fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
        _ => return None,
    })
}

/// The type a tensor of `dtype` has in a `.npy` file.
///
/// ```
/// use wgfc::DType;
/// use wgfc::npy::file_dtype;
/// assert_eq!(file_dtype(DType::F16), DType::F16);
/// // NumPy has no bfloat16.
/// assert_eq!(file_dtype(DType::BF16), DType::F32);
/// ```
pub fn file_dtype(dtype: DType) -> DType {
    match (descr(dtype), dtype) {
        (Some(_), _) => dtype,
        (None, DType::I4 | DType::I2) => DType::I8,
        (None, DType::U4 | DType::U2) => DType::U8,
        (None, _) => DType::F32,
    }
}

/// Reads a `.npy` file in row-major or column-major order, of either endianness, with any of the types above.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("x.npy");
/// use wgfc::{Tensor, npy};
/// let x = Tensor::from_f32(vec![2, 2], &[1.0, 2.0, 3.0, 4.0]);
/// npy::write(&x, &path)?;
/// assert_eq!(npy::read(&path)?, x);
/// // Without reading the whole file:
/// assert_eq!(npy::map(&path)?, x);
/// # Ok(()) }
/// ```
pub fn read(path: &Path) -> Result<Tensor, Error> {
    read_within(path, &Budget::of_data(None))
}

/// [`read`] within a budget, to which the size of the file is added.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("x.npy");
/// # wgfc::npy::write(&wgfc::Tensor::from_f32(vec![1], &[1.0]), &path)?;
/// use wgfc::compiler::budget::Budget;
/// // Reading may take 64 MiB in addition to the files themselves.
/// let budget = Budget::of_data(Some(64 << 20));
/// let x = wgfc::npy::read_within(&path, &budget)?;
/// assert_eq!(x.shape, [1]);
/// # Ok(()) }
/// ```
pub fn read_within(path: &Path, budget: &Budget) -> Result<Tensor, Error> {
    let bytes = map_file(path)?;
    let bytes = (*bytes).as_ref();
    budget.add_file(bytes.len() as u64);
    let wrong =
        |m| Error::file_help(path, m, "numpy.save(path, array) writes such files, of numbers and booleans");
    let layout = layout(bytes).map_err(wrong)?;
    let copies = if layout.fortran && layout.shape.len() > 1 { 2 } else { 1 };
    let need = (layout.len as u64).saturating_mul(copies);
    let taken = budget.take(need, format_args!("the {} bytes of its elements", layout.len));
    taken.map_err(|d| over(path, d))?;
    memory::afford(need)
        .map_err(|m| Error::file_help(path, m, "give a smaller array, or a machine with more memory"))?;
    parse(bytes, layout).map_err(wrong)
}

fn over(path: &Path, d: Diagnostic) -> Error {
    Error::File { path: path.to_owned(), problems: vec![d.message], help: d.help }
}

/// [`read`] that maps the values into memory ([`map_file`]) if they are stored as in a tensor: row-major and little-endian.
/// Only the accessed parts of the file are then read, so it may be larger than the memory.
pub fn map(path: &Path) -> Result<Tensor, Error> {
    map_within(path, &Budget::of_data(None))
}

/// [`map`] within a budget, to which the size of the file is added. See the example of [`read_within`].
pub fn map_within(path: &Path, budget: &Budget) -> Result<Tensor, Error> {
    let bytes = map_file(path)?;
    budget.add_file((*bytes).as_ref().len() as u64);
    let mapped = layout((*bytes).as_ref()).and_then(|l| {
        let as_it_is = !l.big && (!l.fortran || l.shape.len() < 2) && l.dtype != DType::Bool;
        as_it_is.then(|| Tensor::shared(l.dtype, l.shape, bytes.clone(), l.start, l.len)).transpose()
    });
    match mapped {
        Ok(Some(t)) => Ok(t),
        _ => read_within(path, budget),
    }
}

/// The contents of the header of a `.npy` file: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }`.
#[derive(Default)]
struct Header {
    descr: Option<String>,
    fortran: Option<bool>,
    shape: Option<Vec<usize>>,
}

/// The most characters of a header that an error quotes.
const SHOWN: usize = 200;

/// The most axes of a NumPy array.
const AXES: usize = 64;

/// The unread rest of a header.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn eat(&mut self, token: &str) -> bool {
        let rest = self.0.trim_start();
        let found = rest.strip_prefix(token);
        self.0 = found.unwrap_or(rest);
        found.is_some()
    }
    fn string(&mut self) -> Option<&'a str> {
        let quote = ["'", "\""].into_iter().find(|q| self.eat(q))?;
        let (text, rest) = self.0.split_once(quote)?;
        self.0 = rest;
        Some(text)
    }
    fn number(&mut self) -> Option<usize> {
        let rest = self.0.trim_start();
        let (digits, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        // Python 2 writes numbers as in `3L`.
        self.0 = rest.strip_prefix('L').unwrap_or(rest);
        digits.parse().ok()
    }
}

impl Header {
    fn parse(text: &str) -> Result<Header, String> {
        let bad = || {
            let shown: String = text.trim_end().chars().take(SHOWN).collect();
            let more = if shown.len() < text.trim_end().len() { "…" } else { "" };
            format!("is not a .npy file: its header is `{shown}{more}`")
        };
        let mut rest = Literal(text);
        let mut header = Header::default();
        if !rest.eat("{") {
            return Err(bad());
        }
        while !rest.eat("}") {
            let key = rest.string().ok_or_else(bad)?;
            if !rest.eat(":") {
                return Err(bad());
            }
            match key {
                "descr" if rest.eat("[") => return Err("its element type is a structure".into()),
                "descr" => header.descr = Some(rest.string().ok_or_else(bad)?.to_owned()),
                "fortran_order" if rest.eat("True") => header.fortran = Some(true),
                "fortran_order" if rest.eat("False") => header.fortran = Some(false),
                "shape" if rest.eat("(") => {
                    let mut shape = vec![];
                    while !rest.eat(")") {
                        shape.push(rest.number().ok_or("its shape overflows")?);
                        if shape.len() > AXES {
                            return Err(format!("has more than {AXES} axes"));
                        }
                        if !rest.eat(",") && !rest.0.starts_with(')') {
                            return Err(bad());
                        }
                    }
                    header.shape = Some(shape);
                }
                _ => return Err(bad()),
            }
            if !rest.eat(",") && !rest.0.starts_with('}') {
                return Err(bad());
            }
        }
        Ok(header)
    }
}

/// The text of the header and the data after it.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("is not a .npy file")?;
    // The header's length has two bytes in version 1, and four in later versions.
    let width = if rest.first() == Some(&1) { 2 } else { 4 };
    let cut = || "is cut short: its header ends behind the file".to_owned();
    let digits = rest.get(2..2 + width).ok_or_else(cut)?;
    let len = digits.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let text = rest.get(2 + width..).and_then(|r| r.get(..len)).ok_or_else(cut)?;
    let text = std::str::from_utf8(text).map_err(|_| "is not a .npy file: its header is not text")?;
    Ok((text, &rest[2 + width + len..]))
}

/// The layout of a file's elements.
struct Layout {
    dtype: DType,
    shape: Vec<usize>,
    /// Whether elements are big-endian.
    big: bool,
    fortran: bool,
    /// The offset of the first element, and the bytes of all elements.
    start: usize,
    len: usize,
}

fn layout(bytes: &[u8]) -> Result<Layout, String> {
    let (text, data_bytes) = split(bytes)?;
    let header = Header::parse(text)?;
    let (Some(descr_text), Some(fortran), Some(shape)) = (header.descr, header.fortran, header.shape) else {
        return Err("is not a .npy file: its header lacks an entry".into());
    };
    if checked_numel(&shape).is_none() {
        return Err("its shape overflows".into());
    }
    let text = descr_text.replacen('=', "<", 1);
    let little = text.replacen('>', "<", 1);
    let dtype = DType::ALL
        .iter()
        .copied()
        .find(|d| descr(*d).is_some_and(|want| want == little || want.replacen('|', "<", 1) == little))
        .ok_or_else(|| format!("its element type {text} is none that a model can have"))?;
    let len = dtype.bytes_for(checked_numel(&shape).unwrap_or(0));
    let have = data_bytes.len();
    if have < len {
        return Err(format!("is too short: {dtype}{shape:?} needs {len} bytes of data, it has {have}"));
    }
    Ok(Layout { dtype, shape, big: text.starts_with('>'), fortran, start: bytes.len() - have, len })
}

fn parse(bytes: &[u8], layout: Layout) -> Result<Tensor, String> {
    let Layout { dtype, shape, big, fortran, start, len } = layout;
    let width = dtype.bits() / 8;
    let stored = bytes.get(start..start + len).unwrap_or_default();
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| format!("there is no memory for its {len} bytes"))?;
    data.extend_from_slice(stored);
    if big {
        data.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool {
        data.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    if fortran && shape.len() > 1 {
        data = row_major(&data, &shape, width);
    }
    Tensor::new(dtype, shape, data)
}

/// Converts column-major order to row-major.
fn row_major(data: &[u8], shape: &[usize], width: usize) -> Vec<u8> {
    let mut strides = vec![1usize; shape.len()];
    for i in 1..shape.len() {
        strides[i] = strides[i - 1] * shape[i - 1];
    }
    gathered(data, width, shape, &strides)
}

/// The bytes of a `.npy` file with `tensor`.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// let bytes = wgfc::npy::to_bytes(&wgfc::Tensor::from_f32(vec![1], &[1.0]))?;
/// assert!(bytes.starts_with(b"\x93NUMPY"));
/// # Ok(()) }
/// ```
pub fn to_bytes(tensor: &Tensor) -> Result<Vec<u8>, Error> {
    let dtype = file_dtype(tensor.dtype);
    let internal = |m: String| Error::Internal(format!("a tensor cannot be written as .npy: {m}"));
    let widened;
    let stored = if dtype == tensor.dtype {
        tensor
    } else {
        widened = cast(tensor, dtype).ok_or_else(|| internal("it has no values".into()))?;
        &widened
    };
    let data = stored.bytes().ok_or_else(|| internal("it has no values".into()))?;
    let kind = descr(dtype).ok_or_else(|| internal(format!("there is no NumPy type for {dtype}")))?;
    let mut shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
    if shape.len() == 1 {
        // A tuple of one element ends with a comma.
        shape.push(String::new());
    }
    let header = format!(
        "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}",
        shape.join(", ").trim_end()
    );
    // The data begins at a multiple of 64 bytes. No tensor has enough axes for a header of 64 KiB.
    let len = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let mut out = Vec::with_capacity(10 + len + data.len());
    out.extend_from_slice(b"\x93NUMPY\x01\x00");
    out.extend_from_slice(
        &u16::try_from(len).map_err(|_| internal("it has too many axes".into()))?.to_le_bytes(),
    );
    out.extend_from_slice(format!("{header:<width$}\n", width = len - 1).as_bytes());
    out.extend_from_slice(data);
    Ok(out)
}

/// Writes `tensor` to `path`, through a temporary file beside it.
pub fn write(tensor: &Tensor, path: &Path) -> Result<(), Error> {
    let bytes = to_bytes(tensor)?;
    write_whole(path, &bytes)
}

/// The values converted to another element type; `None` if the tensor has none.
///
/// ```
/// use wgfc::{DType, Tensor, npy::cast};
/// let x = cast(&Tensor::from_i64(vec![2], &[1, -2]), DType::F16).unwrap();
/// assert_eq!((x.dtype, x.to_f32s()), (DType::F16, Some(vec![1.0, -2.0])));
/// ```
pub fn cast(tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    let convert = |s: Scalar| match tensor.dtype.is_float() {
        true => Scalar::from_f64(dtype, s.as_f64()),
        false => Scalar::from_i64(dtype, s.as_i64()),
    };
    let mut data = Vec::with_capacity(dtype.bytes_for(tensor.numel()));
    for piece in pieces(tensor) {
        let values: Vec<Scalar> = piece.scalars()?.into_iter().map(convert).collect();
        data.extend_from_slice(Tensor::from_scalars(dtype, vec![values.len()], &values).bytes()?);
    }
    Tensor::new(dtype, tensor.shape.clone(), data).ok()
}

/// The number of elements that are converted at a time, as a scalar takes many times the bytes of an element.
const PIECE: usize = 1 << 16;

/// The elements of a tensor in pieces of [`PIECE`] elements.
fn pieces(t: &Tensor) -> impl Iterator<Item = Tensor> {
    let n = t.numel();
    (0..n).step_by(PIECE).map(move |start| t.flat_slice(start, PIECE.min(n - start)))
}

/// `tensor` in the type of a model's input: unchanged, or narrowed if NumPy lacks the type. Any other type is converted only
/// if `any` is set; the text then says how the values change.
///
/// # Errors
/// Another type without `any`, or values that the new type cannot represent.
///
/// ```
/// use wgfc::{DType, Tensor, npy::fit};
/// let x = || Tensor::from_f32(vec![1], &[1.0]);
/// assert!(fit(x(), DType::F32, false).is_ok());
/// // Another type is converted only if any is allowed.
/// assert!(fit(x(), DType::I64, false).is_err());
/// assert!(fit(x(), DType::I64, true).is_ok());
/// ```
pub fn fit(tensor: Tensor, dtype: DType, any: bool) -> Result<(Tensor, Option<String>), Problem> {
    if tensor.dtype == dtype {
        return Ok((tensor, None));
    }
    let from = tensor.dtype;
    let narrowed = descr(dtype).is_none() && from == file_dtype(dtype);
    if !narrowed && !any {
        return Err(Problem::with_help(
            format!("is {from}, the model wants {dtype}"),
            "--cast converts it, and says what that changes",
        ));
    }
    let empty = || Problem::with_help("has no values", "give a file that has some");
    let made = cast(&tensor, dtype).ok_or_else(empty)?;
    if narrowed {
        return Ok((made, None));
    }
    let same = |a: &Scalar, b: &Scalar| match (from.is_float(), dtype.is_float()) {
        (false, false) => a.as_i64() == b.as_i64(),
        (false, true) => a.as_i64() as i128 == b.as_f64() as i128,
        (true, false) => a.as_f64().fract() == 0.0 && a.as_f64() as i128 == b.as_i64() as i128,
        _ => a.as_f64() == b.as_f64() || a.as_f64().is_nan() && b.as_f64().is_nan(),
    };
    let text = |v: &Scalar, t: DType| match t.is_float() {
        true => v.as_f64().to_string(),
        false => v.as_i64().to_string(),
    };
    let (mut first, mut differ) = (None, 0usize);
    for (before, after) in pieces(&tensor).zip(pieces(&made)) {
        let (before, after) = (before.scalars().ok_or_else(empty)?, after.scalars().ok_or_else(empty)?);
        for (a, b) in before.iter().zip(&after).filter(|(a, b)| !same(a, b)) {
            if !dtype.is_float() || !b.as_f64().is_finite() && a.as_f64().is_finite() {
                return Err(Problem::with_help(
                    format!("is {from}, and {dtype} cannot hold its value {}", text(a, from)),
                    "round or clip the values before you store them",
                ));
            }
            differ += 1;
            first = first.or(Some((*a, *b)));
        }
    }
    let how = match &first {
        None => "which changes no value".to_owned(),
        Some((a, b)) => format!(
            "which rounds {differ} of {} values, as {} to {}",
            tensor.numel(),
            text(a, from),
            text(b, dtype)
        ),
    };
    Ok((made, Some(format!("{from} converted to {dtype}, {how}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Tensor, String> {
        layout(bytes).and_then(|l| super::parse(bytes, l))
    }

    #[test]
    fn every_type_survives() {
        for dtype in DType::ALL {
            let shape = vec![3, 5];
            let n = dtype.bytes_for(15);
            // Small bit patterns are no NaN in any type; the bits of a NaN may change in widening.
            let bytes: Vec<u8> = (0..n).map(|i| (i % 2) as u8 * u8::from(*dtype != DType::F8E8M0)).collect();
            let t = Tensor::new(*dtype, shape.clone(), bytes).unwrap();
            let back = parse(&to_bytes(&t).unwrap()).unwrap();
            assert_eq!(back.dtype, file_dtype(*dtype), "{dtype}");
            let back = fit(back, *dtype, false).unwrap().0;
            assert_eq!(back.shape, shape);
            assert_eq!(back.scalars(), t.scalars(), "{dtype}");
        }
    }

    #[test]
    fn mapped_files_have_the_values_of_read_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        let of = |kind: &str, fortran: &str, data: &[u8]| {
            let header = format!("{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': (3, 2), }}\n");
            let mut file = b"\x93NUMPY\x01\x00".to_vec();
            file.extend((header.len() as u16).to_le_bytes());
            file.extend(header.as_bytes());
            file.extend(data);
            std::fs::write(&path, file).unwrap();
            (map(&path).unwrap(), read(&path).unwrap())
        };
        let bytes: Vec<u8> = (0..24).collect();
        for (kind, fortran) in
            [("<f4", "False"), (">f4", "False"), ("<i4", "True"), ("|u1", "False"), ("|b1", "False")]
        {
            let (mapped, read) = of(kind, fortran, &bytes);
            assert_eq!(
                (mapped.dtype, &mapped.shape, mapped.bytes()),
                (read.dtype, &read.shape, read.bytes()),
                "{kind}"
            );
        }
        of("<f4", "False", &bytes);
        std::fs::write(&path, &std::fs::read(&path).unwrap()[..90]).unwrap();
        assert!(map(&path).unwrap_err().to_string().contains("too short"));
    }

    #[test]
    fn conversions_say_what_they_change() {
        let said = |t: &Tensor, dtype| {
            assert!(fit(t.clone(), dtype, false).unwrap_err().help.is_some_and(|h| h.contains("--cast")));
            match fit(t.clone(), dtype, true) {
                Ok((made, Some(said))) => {
                    assert_eq!((made.dtype, &made.shape), (dtype, &t.shape));
                    said
                }
                Ok((_, None)) => panic!("nothing was said"),
                Err(p) => p.message,
            }
        };
        let of = |dtype, v: &[f64]| {
            let v: Vec<_> = v.iter().map(|v| wgfc_ir::Scalar::from_f64(dtype, *v)).collect();
            Tensor::from_scalars(dtype, vec![v.len()], &v)
        };
        let ints = Tensor::from_i64(vec![2], &[3, -4]);
        assert!(said(&ints, DType::I32).contains("changes no value"));
        assert!(said(&ints, DType::F32).contains("changes no value"));
        assert!(said(&ints, DType::U8).contains("cannot hold its value -4"));
        assert!(
            said(&Tensor::from_i64(vec![1], &[1 << 40]), DType::I32)
                .contains("cannot hold its value 1099511627776")
        );
        assert!(
            said(&of(DType::F64, &[0.5, 0.1, f64::NAN]), DType::F32)
                .contains("rounds 1 of 3 values, as 0.1 to 0.1")
        );
        assert!(said(&of(DType::F64, &[1e300]), DType::F32).contains("cannot hold"));
        assert!(said(&of(DType::F64, &[2.0, 2.5]), DType::I64).contains("cannot hold its value 2.5"));
    }

    #[test]
    fn fortran_order_and_big_endian_are_read() {
        let header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }";
        let mut text = format!("{header:<117}\n").into_bytes();
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.append(&mut text);
        for v in [1i16, 4, 2, 5, 3, 6] {
            file.extend(v.to_be_bytes());
        }
        let t = parse(&file).unwrap();
        assert_eq!((t.dtype, t.shape.clone()), (DType::I16, vec![2, 3]));
        assert_eq!(t.to_i64s().unwrap(), [1, 2, 3, 4, 5, 6]);
        file.pop();
        assert!(parse(&file).unwrap_err().contains("too short"));
        let mut long = b"\x93NUMPY\x02\x00".to_vec();
        long.extend(u32::MAX.to_le_bytes());
        assert!(parse(&long).unwrap_err().contains("cut short"));
        assert!(parse(b"not numpy").unwrap_err().contains("not a .npy"));
        let headed = |header: &str| {
            let mut file = b"\x93NUMPY\x01\x00".to_vec();
            file.extend((header.len() as u16).to_le_bytes());
            file.extend(header.as_bytes());
            file.extend([7; 4]);
            parse(&file)
        };
        let good = headed("{\"shape\": (2L,), 'descr': '<i1', 'fortran_order': False}").unwrap();
        assert_eq!((good.dtype, good.to_i64s().unwrap()), (DType::I8, vec![7, 7]));
        assert_eq!(
            headed("{'descr': '|u1', 'fortran_order': False, 'shape': (), }").unwrap().shape,
            [0usize; 0]
        );
        for (header, says) in [
            ("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}", "a structure"),
            ("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "<c8 is none"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "overflows"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "overflows"),
            ("{'descr': '<f4', 'fortran_order': False}", "lacks"),
            ("{'descr': '<f4', 'shape': (1", "not a .npy"),
            ("{'descr'", "not a .npy"),
            ("", "not a .npy"),
        ] {
            let said = headed(header).unwrap_err();
            assert!(said.contains(says), "{header}: {said}");
        }
    }
}
