//! Detects outputs that may have overflowed, in programs that keep f32 values in f16.

use crate::{DType, Program, Tensor};

/// The warning about outputs with elements that are not finite, if the program keeps f32 values in f16 and so may have
/// overflowed; `None` if all elements are finite or nothing was kept in f16.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// use wgfc::compiler::Precision;
/// use wgfc::{Options, Tensor, overflow::overflow};
/// let options = Options { precision: Precision::F16, ..Options::default() };
/// let program = wgfc::compile_file(&path, &options)?;
/// let y = Tensor::from_f32(vec![1], &[f32::INFINITY]);
/// assert!(overflow(&program, [("probabilities", &y)]).is_some());
/// # Ok(()) }
/// ```
pub fn overflow<'t>(
    program: &Program,
    outputs: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
) -> Option<String> {
    program.stats.halved.as_ref()?;
    let names: Vec<&str> = outputs.into_iter().filter(|(_, t)| !is_finite(t)).map(|(n, _)| n).collect();
    (!names.is_empty()).then(|| {
        let (names, are) = (names.join(", "), if names.len() == 1 { "is" } else { "are" });
        format!(
            "{names} {are} not finite everywhere, and values were kept in f16, whose largest is 65504: compile it with the precision f32 to see \
             whether that is why; `wgfc compare MODEL --precision f16` shows where, and --keep-f32 NODE keeps a node in f32"
        )
    })
}

/// Whether no element is infinite or NaN. A tensor without values counts as finite.
fn is_finite(t: &Tensor) -> bool {
    let words = |exponent: u32| {
        let all = t.bytes().unwrap_or_default();
        all.chunks_exact(4).all(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & exponent != exponent)
    };
    match t.dtype {
        DType::F32 => words(0x7f80_0000),
        d if d.is_float() => t.scalars().is_none_or(|all| all.iter().all(|s| s.as_f64().is_finite())),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::Scalar;
    use wgfc_ir::program::Halved;

    #[test]
    fn outputs_are_looked_at_where_values_are_in_half() {
        let good = Tensor::from_f32(vec![3], &[f32::MAX, 0.0, -1e-40]);
        let bad = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(|v| Tensor::from_f32(vec![2], &[1.0, v]));
        let half = Tensor::from_scalars(DType::F16, vec![1], &[Scalar::from_f64(DType::F32, 1e5)]);
        let whole = Tensor::from_i64(vec![1], &[-1]);
        let mut program = Program::default();
        assert_eq!(overflow(&program, [("a", &bad[0])]), None);
        program.stats.halved = Some(Halved::default());
        assert_eq!(overflow(&program, [("a", &good), ("b", &whole)]), None);
        for b in bad.iter().chain([&half]) {
            let said = overflow(&program, [("a", &good), ("b", b)]).unwrap();
            assert!(said.starts_with("b is not finite everywhere"), "{said}");
        }
        let said = overflow(&program, [("a", &bad[0]), ("b", &bad[1])]).unwrap();
        assert!(said.starts_with("a, b are not finite everywhere"), "{said}");
    }
}
