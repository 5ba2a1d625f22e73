//! Outputs whose sizes a run computes.

use super::{Ready, Session};
use crate::bind;
use crate::error::RunError;
use crate::tensor::{self, DeviceTensor};
use wgfc_program::{DType, Dim, Program, Tensor};

/// The facts that are needed to know the shapes of outputs after a run.
#[derive(Debug)]
pub(super) struct Late {
    /// A copy of the `Dims` uniform, with the computed sizes.
    pub(super) dims: DeviceTensor,
    /// The outputs that are read, by their position in the program.
    pub(super) wanted: Vec<usize>,
    /// Values of the symbols, those computed not among them.
    values: Vec<i64>,
    program: Program,
}

impl Late {
    /// The shapes of all outputs, by the dimensions as read.
    pub(super) fn shapes(&self, dims: &Tensor) -> Result<Vec<Vec<usize>>, RunError> {
        let mut values = self.values.clone();
        let words = dims.bytes().unwrap_or_default().chunks_exact(4);
        for ((v, s), w) in values.iter_mut().zip(&self.program.symbols).zip(words) {
            if self.program.computed.iter().any(|c| c.symbol == *s) {
                *v = w.try_into().map_or(0, |w| i64::from(i32::from_le_bytes(w)));
            }
        }
        bind::settle(&self.program, &values)
    }

    /// Waits for the run and reads the dimensions.
    pub(super) async fn read(&self) -> Result<Vec<Vec<usize>>, RunError> {
        let read = tensor::read_all(&self.dims.gpu, std::slice::from_ref(&self.dims), &mut None).await?;
        read.first().map_or_else(|| Ok(vec![]), |dims| self.shapes(dims))
    }
}

impl Session {
    /// The values that must be read after a run; nothing when the shapes of all outputs are known before it.
    pub(super) fn late(&self, ready: &Ready, wanted: Vec<usize>) -> Option<Late> {
        let p = &self.program;
        let of_outputs = p.outputs.iter().flat_map(|o| &o.shape);
        let sizes: Vec<&Dim> = of_outputs.chain(p.constraints.iter().flat_map(|c| [&c.a, &c.b])).collect();
        bind::computed(p, &sizes)?;
        let (memory, gpu) = (self.dims.clone(), self.gpu.clone());
        let dims = DeviceTensor { dtype: DType::I32, shape: vec![p.symbols.len()], memory, gpu };
        // Only the part of the program that says how large things are.
        let program = Program {
            outputs: p.outputs.clone(),
            symbols: p.symbols.clone(),
            computed: p.computed.clone(),
            constraints: p.constraints.clone(),
            ..Program::default()
        };
        Some(Late { dims, wanted, values: ready.prepared.values().to_vec(), program })
    }
}
