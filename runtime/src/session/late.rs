//! Outputs with sizes that a run computes.

use super::{Ready, Session};
use crate::bind;
use crate::error::RunError;
use crate::tensor::{self, DeviceTensor};
use wgfc_program::{DType, Dim, Program, Tensor};

/// Everything that is needed to find the shapes of outputs after a run.
#[derive(Debug)]
pub(super) struct Late {
    /// The `Dims` uniform, or a copy of it, with the computed sizes.
    pub(super) dims: DeviceTensor,
    /// The indices in the program of the outputs that are read.
    pub(super) wanted: Vec<usize>,
    /// The values of the symbols; those of computed symbols are not known yet.
    values: Vec<i64>,
    program: Program,
}

impl Late {
    /// The shapes of all outputs, from the contents of the `Dims` uniform.
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

    /// Waits for the run, reads the computed sizes and returns the shapes of all outputs.
    pub(super) async fn read(&self) -> Result<Vec<Vec<usize>>, RunError> {
        let read = tensor::read_all(&self.dims.gpu, std::slice::from_ref(&self.dims), &mut None).await?;
        read.first().map_or_else(|| Ok(vec![]), |dims| self.shapes(dims))
    }
}

impl Session {
    /// The sizes to read after a run; `None` if the shapes of all outputs are known before it.
    pub(super) fn late(&self, ready: &Ready, wanted: Vec<usize>) -> Option<Late> {
        let p = &self.program;
        let of_outputs = p.outputs.iter().flat_map(|o| &o.shape);
        let sizes: Vec<&Dim> = of_outputs.chain(p.constraints.iter().flat_map(|c| [&c.a, &c.b])).collect();
        bind::computed(p, &sizes)?;
        let (memory, gpu) = (self.dims.clone(), self.gpu.clone());
        let dims = DeviceTensor { dtype: DType::I32, shape: vec![p.symbols.len()], memory, gpu };
        // Only the parts of the program that determine sizes.
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
