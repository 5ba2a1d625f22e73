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
use wgfc_ir::derived::{Derivation, planes};
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

/// A plane of a type with blocks of `$block` bytes, which a function of [`planes`] makes.
macro_rules! plane {
    ($block:literal, [$dtype:ident; $per:literal], $make:ident) => {
        Plane {
            how: Derivation {
                name: stringify!($make),
                block: $block,
                makes: $per * DType::$dtype.bits() / 8,
                make: planes::$make,
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
            low: plane!(18, [U4; 32], q4_0_elements),
            high: None,
            zero: 8,
            factors: None,
            scale: plane!(18, [F16; 1], q4_0_scales),
            minimum: None,
        },
    ),
    blocks(
        3,
        "Q4_1",
        32,
        20,
        &Blocks {
            low: plane!(20, [U4; 32], q4_1_elements),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!(20, [F16; 2], q4_1_scales),
            minimum: Some(B::Add),
        },
    ),
    blocks(
        6,
        "Q5_0",
        32,
        22,
        &Blocks {
            low: plane!(22, [U4; 32], q5_0_low),
            high: Some(plane!(22, [U2; 32], q5_0_high)),
            zero: 16,
            factors: None,
            scale: plane!(22, [F16; 1], q5_0_scales),
            minimum: None,
        },
    ),
    blocks(
        7,
        "Q5_1",
        32,
        24,
        &Blocks {
            low: plane!(24, [U4; 32], q5_1_low),
            high: Some(plane!(24, [U2; 32], q5_1_high)),
            zero: 0,
            factors: None,
            scale: plane!(24, [F16; 2], q5_1_scales),
            minimum: Some(B::Add),
        },
    ),
    blocks(
        8,
        "Q8_0",
        32,
        34,
        &Blocks {
            low: plane!(34, [I8; 32], q8_0_elements),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!(34, [F16; 1], q8_0_scales),
            minimum: None,
        },
    ),
    blocks(
        10,
        "Q2_K",
        256,
        84,
        &Blocks {
            low: plane!(84, [U2; 256], q2_k_elements),
            high: None,
            zero: 0,
            factors: Some(Factors { plane: plane!(84, [U4; 32], q2_k_factors), group: 16 }),
            scale: plane!(84, [F16; 2], q2_k_scales),
            minimum: Some(B::Sub),
        },
    ),
    blocks(
        11,
        "Q3_K",
        256,
        110,
        &Blocks {
            low: plane!(110, [U4; 256], q3_k_elements),
            high: None,
            zero: 4,
            factors: Some(Factors { plane: plane!(110, [I8; 16], q3_k_factors), group: 16 }),
            scale: plane!(110, [F16; 1], q3_k_scales),
            minimum: None,
        },
    ),
    blocks(
        12,
        "Q4_K",
        256,
        144,
        &Blocks {
            low: plane!(144, [U4; 256], q4_k_elements),
            high: None,
            zero: 0,
            factors: Some(Factors { plane: plane!(144, [U8; 16], q4_k_factors), group: 32 }),
            scale: plane!(144, [F16; 2], q4_k_scales),
            minimum: Some(B::Sub),
        },
    ),
    blocks(
        13,
        "Q5_K",
        256,
        176,
        &Blocks {
            low: plane!(176, [U4; 256], q5_k_low),
            high: Some(plane!(176, [U2; 256], q5_k_high)),
            zero: 0,
            factors: Some(Factors { plane: plane!(176, [U8; 16], q5_k_factors), group: 32 }),
            scale: plane!(176, [F16; 2], q5_k_scales),
            minimum: Some(B::Sub),
        },
    ),
    blocks(
        14,
        "Q6_K",
        256,
        210,
        &Blocks {
            low: plane!(210, [U4; 256], q6_k_low),
            high: Some(plane!(210, [U2; 256], q6_k_high)),
            zero: 32,
            factors: Some(Factors { plane: plane!(210, [I8; 16], q6_k_factors), group: 16 }),
            scale: plane!(210, [F16; 1], q6_k_scales),
            minimum: None,
        },
    ),
    blocks(
        20,
        "IQ4_NL",
        32,
        18,
        &Blocks {
            low: plane!(18, [I8; 32], iq4_nl_elements),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!(18, [F16; 1], q4_0_scales),
            minimum: None,
        },
    ),
    blocks(
        39,
        "MXFP4",
        32,
        17,
        &Blocks {
            low: plane!(17, [F4E2M1; 32], mxfp4_elements),
            high: None,
            zero: 0,
            factors: None,
            scale: plane!(17, [F8E8M0; 1], mxfp4_scales),
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
