//! Types of blocks, and the values of their elements.
//!
//! A block holds a run of elements along the last axis: integers of a few bits, and scales and minima. Products read integers of a
//! type as wide as they are, one after the other. So each block is cut into planes, each a tensor of its own that is made of the
//! file's bytes when they are read:
//!
//! ```text
//! value = scale · (low + 16 · high − zero) ± minimum
//! scale = d, or d · s with an integer s for each group of elements; likewise the minimum
//! ```
//!
//! Values are computed in f32 in this order, as the package `gguf` does, and are equal to its values bit by bit. The layouts are those
//! of `ggml-common.h` of the project ggml.

use crate::lower::{self, Lowering, OpError};
use wgfc_ir::derived::Derivation;
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, Scalar, ScalarFn, ScalarNode as N, Tensor, Value};

/// A tensor that is made of the blocks of another.
#[derive(Clone, Copy, Debug)]
struct Plane {
    how: Derivation,
    dtype: DType,
    /// The number of elements that a block makes.
    per: usize,
}

/// Integer factors of scales and of minima.
#[derive(Clone, Copy, Debug)]
struct Factors {
    plane: Plane,
    /// The number of elements that share a factor.
    group: usize,
}

/// A type of blocks of integers.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    low: Plane,
    high: Option<Plane>,
    zero: i64,
    factors: Option<Factors>,
    scale: Plane,
    /// The operation that joins the minimum. If there is one, scales and factors are followed by minima and theirs.
    minimum: Option<B>,
}

/// The form of the elements of a type.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Plain elements.
    Plain(DType),
    /// Blocks of integers.
    Blocks(&'static Blocks),
}

/// A type of tensors.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its code in the file.
    pub code: u32,
    /// Its name.
    pub name: &'static str,
    /// The number of elements of a block.
    pub elements: usize,
    /// The number of bytes of a block.
    pub bytes: usize,
    form: Form,
}

/// Writes elements of 4 bits.
fn nibbles(to: &mut [u8], of: impl Fn(usize) -> u8) {
    for (i, b) in to.iter_mut().enumerate() {
        *b = of(2 * i) & 15 | of(2 * i + 1) << 4;
    }
}

/// Writes elements of 2 bits.
fn quarters(to: &mut [u8], of: impl Fn(usize) -> u8) {
    for (i, b) in to.iter_mut().enumerate() {
        *b = (0..4).fold(0, |b, k| b | (of(4 * i + k) & 3) << (2 * k));
    }
}

/// The 4-bit integers of a block of 32: the first half in the low bits of its bytes, the second half in the high ones.
fn halves(q: &[u8], i: usize) -> u8 {
    q[i % 16] >> (4 * (i / 16))
}

/// The bit of an element of a block of 32.
fn bit(h: &[u8], i: usize) -> u8 {
    h[i / 8] >> (i % 8) & 1
}

/// The 4-bit integers of a block of 256: of each 64 elements the first 32 are in the low bits of 32 bytes.
fn pairs(q: &[u8], i: usize) -> u8 {
    q[i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2))
}

/// The 2-bit integers of a block of 256: of each 128 elements every 32 have bits of their own in 32 bytes.
fn fours(q: &[u8], i: usize) -> u8 {
    q[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// The bit of an element of a block of 256: every 32 elements have a bit of their own in 32 bytes.
fn plane_bit(h: &[u8], i: usize) -> u8 {
    h[i % 32] >> (i / 32) & 1
}

/// The low 4 bits of the 6-bit integers of a block of 256.
fn sixes(q: &[u8], i: usize) -> u8 {
    let (half, group, at) = (i / 128, i / 32 % 4, i % 32);
    q[half * 64 + group % 2 * 32 + at] >> (group / 2 * 4)
}

/// Writes the eight pairs of 6-bit factors of a scale and a minimum.
fn factor_pairs(s: &[u8], to: &mut [u8]) {
    for (j, pair) in to.chunks_exact_mut(2).enumerate() {
        let (scale, minimum) = match j {
            0..4 => (s[j] & 63, s[4 + j] & 63),
            _ => (s[4 + j] & 15 | s[j - 4] >> 2 & 48, s[4 + j] >> 4 | s[j] >> 2 & 48),
        };
        pair.copy_from_slice(&[scale, minimum]);
    }
}

/// Writes sixteen signed 6-bit factors.
fn factors_of_three(s: &[u8], to: &mut [u8]) {
    for (j, f) in to.iter_mut().enumerate() {
        let low = s[j % 8] >> (4 * (j / 8)) & 15;
        let high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
        *f = (low | high << 4).wrapping_sub(32);
    }
}

const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A plane of the block type `$name` with blocks of `$block` bytes.
macro_rules! plane {
    ($name:literal, $block:literal, [$dtype:ident; $per:literal], $make:expr) => {
        Plane {
            how: Derivation {
                name: $name,
                block: $block,
                makes: $per * DType::$dtype.bits() / 8,
                make: $make,
            },
            dtype: DType::$dtype,
            per: $per,
        }
    };
}

const fn plain(code: u32, name: &'static str, dtype: DType) -> Kind {
    Kind { code, name, elements: 1, bytes: dtype.bits() / 8, form: Form::Plain(dtype) }
}

const fn blocks(code: u32, name: &'static str, elements: usize, bytes: usize, form: &'static Blocks) -> Kind {
    Kind { code, name, elements, bytes, form: Form::Blocks(form) }
}

/// All types.
pub const KINDS: &[Kind] = &[
    plain(0, "F32", DType::F32),
    plain(1, "F16", DType::F16),
    plain(30, "BF16", DType::BF16),
    plain(28, "F64", DType::F64),
    blocks(
        2,
        "Q4_0",
        32,
        18,
        &Blocks {
            low: plane!("q4_0 elements", 18, [U4; 32], |b, to| nibbles(to, |i| halves(&b[2..], i))),
            high: None,
            zero: 8,
            factors: None,
            scale: plane!("q4_0 scales", 18, [F16; 1], |b, to| to.copy_from_slice(&b[..2])),
            minimum: None,
        },
    ),
    blocks(
        3,
        "Q4_1",
        32,
        20,
        &Blocks {
            low: plane!("q4_1 elements", 20, [U4; 32], |b, to| nibbles(to, |i| halves(&b[4..], i))),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!("q4_1 scales", 20, [F16; 2], |b, to| to.copy_from_slice(&b[..4])),
            minimum: Some(B::Add),
        },
    ),
    blocks(
        6,
        "Q5_0",
        32,
        22,
        &Blocks {
            low: plane!("q5_0 low", 22, [U4; 32], |b, to| nibbles(to, |i| halves(&b[6..], i))),
            high: Some(plane!("q5_0 high", 22, [U2; 32], |b, to| quarters(to, |i| bit(&b[2..], i)))),
            zero: 16,
            factors: None,
            scale: plane!("q5_0 scales", 22, [F16; 1], |b, to| to.copy_from_slice(&b[..2])),
            minimum: None,
        },
    ),
    blocks(
        7,
        "Q5_1",
        32,
        24,
        &Blocks {
            low: plane!("q5_1 low", 24, [U4; 32], |b, to| nibbles(to, |i| halves(&b[8..], i))),
            high: Some(plane!("q5_1 high", 24, [U2; 32], |b, to| quarters(to, |i| bit(&b[4..], i)))),
            zero: 0,
            factors: None,
            scale: plane!("q5_1 scales", 24, [F16; 2], |b, to| to.copy_from_slice(&b[..4])),
            minimum: Some(B::Add),
        },
    ),
    blocks(
        8,
        "Q8_0",
        32,
        34,
        &Blocks {
            low: plane!("q8_0 elements", 34, [I8; 32], |b, to| to.copy_from_slice(&b[2..])),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!("q8_0 scales", 34, [F16; 1], |b, to| to.copy_from_slice(&b[..2])),
            minimum: None,
        },
    ),
    blocks(
        10,
        "Q2_K",
        256,
        84,
        &Blocks {
            low: plane!("q2_k elements", 84, [U2; 256], |b, to| quarters(to, |i| fours(&b[16..], i))),
            high: None,
            zero: 0,
            factors: Some(Factors {
                plane: plane!("q2_k factors", 84, [U4; 32], |b, to| to.copy_from_slice(&b[..16])),
                group: 16,
            }),
            scale: plane!("q2_k scales", 84, [F16; 2], |b, to| to.copy_from_slice(&b[80..])),
            minimum: Some(B::Sub),
        },
    ),
    blocks(
        11,
        "Q3_K",
        256,
        110,
        &Blocks {
            low: plane!("q3_k elements", 110, [U4; 256], |b, to| {
                nibbles(to, |i| fours(&b[32..], i) | plane_bit(b, i) << 2)
            }),
            high: None,
            zero: 4,
            factors: Some(Factors {
                plane: plane!("q3_k factors", 110, [I8; 16], |b, to| factors_of_three(&b[96..], to)),
                group: 16,
            }),
            scale: plane!("q3_k scales", 110, [F16; 1], |b, to| to.copy_from_slice(&b[108..])),
            minimum: None,
        },
    ),
    blocks(
        12,
        "Q4_K",
        256,
        144,
        &Blocks {
            low: plane!("q4_k elements", 144, [U4; 256], |b, to| nibbles(to, |i| pairs(&b[16..], i))),
            high: None,
            zero: 0,
            factors: Some(Factors {
                plane: plane!("q4_k factors", 144, [U8; 16], |b, to| factor_pairs(&b[4..], to)),
                group: 32,
            }),
            scale: plane!("q4_k scales", 144, [F16; 2], |b, to| to.copy_from_slice(&b[..4])),
            minimum: Some(B::Sub),
        },
    ),
    blocks(
        13,
        "Q5_K",
        256,
        176,
        &Blocks {
            low: plane!("q5_k low", 176, [U4; 256], |b, to| nibbles(to, |i| pairs(&b[48..], i))),
            high: Some(plane!("q5_k high", 176, [U2; 256], |b, to| quarters(to, |i| plane_bit(&b[16..], i)))),
            zero: 0,
            factors: Some(Factors {
                plane: plane!("q5_k factors", 176, [U8; 16], |b, to| factor_pairs(&b[4..], to)),
                group: 32,
            }),
            scale: plane!("q5_k scales", 176, [F16; 2], |b, to| to.copy_from_slice(&b[..4])),
            minimum: Some(B::Sub),
        },
    ),
    blocks(
        14,
        "Q6_K",
        256,
        210,
        &Blocks {
            low: plane!("q6_k low", 210, [U4; 256], |b, to| nibbles(to, |i| sixes(b, i))),
            high: Some(plane!("q6_k high", 210, [U2; 256], |b, to| quarters(to, |i| fours(&b[128..], i)))),
            zero: 32,
            factors: Some(Factors {
                plane: plane!("q6_k factors", 210, [I8; 16], |b, to| to.copy_from_slice(&b[192..208])),
                group: 16,
            }),
            scale: plane!("q6_k scales", 210, [F16; 1], |b, to| to.copy_from_slice(&b[208..])),
            minimum: None,
        },
    ),
    blocks(
        20,
        "IQ4_NL",
        32,
        18,
        &Blocks {
            low: plane!("iq4_nl elements", 18, [I8; 32], |b, to| {
                for (i, t) in to.iter_mut().enumerate() {
                    *t = IQ4_NL[usize::from(halves(&b[2..], i) & 15)] as u8;
                }
            }),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!("iq4_nl scales", 18, [F16; 1], |b, to| to.copy_from_slice(&b[..2])),
            minimum: None,
        },
    ),
    blocks(
        39,
        "MXFP4",
        32,
        17,
        &Blocks {
            low: plane!("mxfp4 elements", 17, [F4E2M1; 32], |b, to| nibbles(to, |i| halves(&b[1..], i))),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!("mxfp4 scales", 17, [F8E8M0; 1], |b, to| to.copy_from_slice(&b[..1])),
            minimum: None,
        },
    ),
];

/// The types that files may have and that are not supported, by code.
pub fn unsupported_name(code: u32) -> String {
    let known = match code {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24..=27 => "integers",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return format!("type {code}"),
    };
    known.to_owned()
}

impl Kind {
    /// The type with this code.
    pub fn find(code: u32) -> Option<&'static Kind> {
        KINDS.iter().find(|k| k.code == code)
    }

    /// The number of bytes of a tensor of this shape.
    ///
    /// # Errors
    /// If its rows are not whole blocks, or it is too large.
    pub fn size(&self, shape: &[usize]) -> Result<usize, String> {
        let n =
            wgfc_ir::tensor::checked_numel(shape).ok_or_else(|| format!("its shape {shape:?} overflows"))?;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(self.elements) {
            let Kind { name, elements, .. } = self;
            return Err(format!("its rows have {row} elements, and blocks of {name} have {elements}"));
        }
        (n / self.elements).checked_mul(self.bytes).ok_or_else(|| format!("its shape {shape:?} overflows"))
    }

    /// The elements of `shape` whose blocks are the bytes of `t`, as f32.
    ///
    /// # Errors
    /// If the bytes are not those that the shape needs.
    pub fn values(&self, cx: &mut Lowering, name: &str, t: &Tensor, shape: &[usize]) -> lower::Result {
        let form = match self.form {
            Form::Blocks(form) => form,
            Form::Plain(dtype) => {
                let t = Tensor { dtype, shape: shape.to_vec(), data: t.data.clone() };
                let v = named(cx, name, t);
                return Ok(cx.cast(v, DType::F32)?);
            }
        };
        let mut f = ScalarFn::default();
        let mut args = vec![];
        let mut arg =
            |cx: &mut Lowering, f: &mut ScalarFn, p: &Plane, (group, at, of): (usize, usize, usize)| {
                let v = self.plane(cx, name, t, shape, p)?;
                let dims: Vec<Dim> = shape.iter().map(|d| (*d).into()).collect();
                let v = if (group, of) == (1, 1) {
                    v
                } else {
                    let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
                    if let Some(last) = index.last_mut() {
                        *last = last.div(&Dim::from(group), &dims) * of as i64 + Poly::constant(at as i64);
                    }
                    cx.view(v, dims, index)?
                };
                args.push(v);
                let x = f.push(N::Arg(args.len() as u32 - 1));
                Ok::<u32, OpError>(f.push(N::Cast(DType::F32, x)))
            };
        let float = |f: &mut ScalarFn, x: i64| f.push(N::Const(Scalar::from_i64(DType::F32, x)));
        let mut x = arg(cx, &mut f, &form.low, (1, 0, 1))?;
        if let Some(high) = &form.high {
            let h = arg(cx, &mut f, high, (1, 0, 1))?;
            let sixteen = float(&mut f, 16);
            let h = f.push(N::Binary(B::Mul, h, sixteen));
            x = f.push(N::Binary(B::Add, x, h));
        }
        if form.zero != 0 {
            let zero = float(&mut f, form.zero);
            x = f.push(N::Binary(B::Sub, x, zero));
        }
        let parts = if form.minimum.is_some() { 2 } else { 1 };
        let mut scaled = |cx: &mut Lowering, f: &mut ScalarFn, part: usize| {
            let mut s = arg(cx, f, &form.scale, (self.elements, part, parts))?;
            if let Some(factors) = &form.factors {
                let by = arg(cx, f, &factors.plane, (factors.group, part, parts))?;
                s = f.push(N::Binary(B::Mul, s, by));
            }
            Ok::<u32, OpError>(s)
        };
        let scale = scaled(cx, &mut f, 0)?;
        let mut y = f.push(N::Binary(B::Mul, scale, x));
        if let Some(join) = form.minimum {
            let minimum = scaled(cx, &mut f, 1)?;
            y = f.push(N::Binary(join, y, minimum));
        }
        debug_assert_eq!(y as usize + 1, f.nodes.len());
        let dims: Vec<Dim> = shape.iter().map(|d| (*d).into()).collect();
        Ok(cx.map_to(f, &args, dims)?)
    }

    /// A plane of a tensor.
    fn plane(&self, cx: &mut Lowering, name: &str, t: &Tensor, shape: &[usize], p: &Plane) -> lower::Result {
        let mut of = shape.to_vec();
        if let Some(last) = of.last_mut() {
            *last = *last / self.elements * p.per;
        }
        Ok(named(cx, name, t.derived(p.how, p.dtype, of)?))
    }
}

/// A constant with a name.
fn named(cx: &mut Lowering, name: &str, t: Tensor) -> Value {
    let v = cx.constant(t);
    cx.graph.node_mut(v.node).names = vec![Some(name.into())];
    v
}
