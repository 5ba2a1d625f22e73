//! The loop nest of a kernel before it is scheduled: its points one after another.
//!
//! [`nest`] writes what the family of a kernel means, as the table in [`kernel`](crate::kernel) says it, in the
//! [loop form](wgfc_loops). It chooses nothing for a device and is not meant to be fast: every expression is computed where the kernel
//! evaluates it, and each value that is read several times has a name. It says what a kernel computes, and scheduling begins with it.

mod attention;
mod builder;
mod loops;
mod rows;
mod sort;

use crate::kernel::{Family, Kernel, KernelGraph, Map, Matmul};
use builder::Builder;
use wgfc_ir::{BinaryOp, DType, ReduceOp, Scalar};
use wgfc_loops::{Expr, Stmt};

/// The loop nest of a kernel whose tensors `graph` describes. The tensors of the nest in storage are those that the kernel reads and
/// writes, in the order of [`tensors`].
///
/// # Errors
/// A contradiction in the kernel, which [`verify`](crate::kernel::verify()) would find.
pub fn nest(kernel: &Kernel, graph: &KernelGraph) -> Result<wgfc_loops::Kernel, String> {
    build(Builder::new(kernel, graph, true))
}

/// [`nest`] with names that follow from the kernel's structure only: equal kernels have equal nests. Its tensors in storage are `t0`, `t1`,
/// ….
///
/// # Errors
/// As [`nest`].
pub fn structural(kernel: &Kernel, graph: &KernelGraph) -> Result<wgfc_loops::Kernel, String> {
    build(Builder::new(kernel, graph, false))
}

fn build(mut b: Builder) -> Result<wgfc_loops::Kernel, String> {
    let kernel = b.kernel;
    let body = match &kernel.family {
        Family::Map(k) => map(&mut b, k)?,
        Family::Row(k) => rows::row(&mut b, k)?,
        Family::PrefixScan(k) => rows::prefix_scan(&mut b, k)?,
        Family::Sort(k) => sort::sort(&mut b, k)?,
        Family::Loop(k) => loops::lane(&mut b, k)?,
        Family::StagedLoop(k) => loops::staged(&mut b, k)?,
        Family::Matmul(k) => matmul(&mut b, k)?,
        Family::Attention(k) => attention::attention(&mut b, k)?,
    };
    b.out.body = body;
    Ok(b.out)
}

/// The tensors of a kernel's nest that are in storage.
pub use builder::tensors;

fn map(b: &mut Builder, k: &Map) -> Result<Vec<Stmt>, String> {
    let i = b.open(0, "i");
    let mut inside = vec![];
    b.stores(&b.kernel.stores, &mut inside)?;
    Ok(vec![b.parallel(i, &k.elements, inside)])
}

/// Products and sums, each in a register.
fn matmul(b: &mut Builder, k: &Matmul) -> Result<Vec<Stmt>, String> {
    let vars = [(0, "batch"), (1, "row"), (2, "column"), (3, "depth")].map(|(i, name)| b.open(i, name));
    let zero = Expr::Const(Scalar::from_f64(DType::F32, 0.0));
    let accs: Vec<usize> = (0..k.b.len() + k.sums.len()).map(|_| b.register("acc", DType::F32)).collect();
    let mut inside: Vec<Stmt> = accs.iter().map(|acc| b.set(*acc, zero.clone())).collect();
    let roots: Vec<u32> = [k.a].iter().chain(&k.b).chain(&k.sums).copied().collect();
    let mut terms = vec![];
    let values = b.values(&roots, &mut terms)?;
    let (first, others) = values.split_first().ok_or("a product without operands")?;
    for (i, (acc, v)) in accs.iter().zip(others).enumerate() {
        let wide = |e: &Expr| b.converted(DType::F32, e.clone());
        let term = match i < k.b.len() {
            true => Expr::binary(BinaryOp::Mul, wide(first)?, wide(v)?),
            false => wide(v)?,
        };
        terms.push(b.combine(*acc, ReduceOp::Sum, term));
    }
    inside.push(b.repeat(vars[3], &k.k, terms));
    for (i, acc) in accs.iter().enumerate() {
        b.accs.insert(i as u32, Expr::load(*acc, vec![]));
    }
    b.stores(&b.kernel.stores, &mut inside)?;
    let columns = b.parallel(vars[2], &k.n, inside);
    let rows = b.parallel(vars[1], &k.m, vec![columns]);
    Ok(vec![b.parallel(vars[0], &k.batch, vec![rows])])
}
