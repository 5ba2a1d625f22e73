//! Kernels as loop nests, executed by the interpreter.

use std::collections::BTreeMap;
use std::ops::Range;
use wgfc_compiler::kernel::bounds::{Facts, STEPS, prove};
use wgfc_compiler::kernel::{KernelGraph, TensorKind};
use wgfc_compiler::nest;
use wgfc_ir::{Graph, Scalar, Tensor, symbols};
use wgfc_loops::interpret::{self, Options};
use wgfc_loops::steps::apply;
use wgfc_loops::{Kernel, bounds, once, races, text, verify};

/// A nest and the tensors of the graph that its tensors in storage are.
struct Nest {
    kernel: Kernel,
    tensors: Vec<usize>,
}

struct Run<'g> {
    kernels: &'g KernelGraph,
    nests: Vec<Nest>,
    sizes: BTreeMap<String, i64>,
    /// The elements of each tensor; of several tensors in one memory those of the first.
    memory: Vec<Vec<Scalar>>,
    /// The tensor whose memory each tensor has.
    home: Vec<usize>,
}

/// The most statements that a nest executes. Files that need more are executed with `WGFC_THOROUGH` only.
const MOST: u64 = 1_000_000;

/// The loop nests of kernels after steps: one line each, with an empty line before those of the next kernel.
pub fn nests(kernels: &KernelGraph, steps: &str) -> Result<Vec<Kernel>, String> {
    let mut steps = steps.trim().split("\n\n");
    let mut out = vec![];
    for (i, k) in kernels.kernels.iter().enumerate() {
        let mut kernel = nest::nest(k, kernels).map_err(|e| format!("kernel {i}: {e}"))?;
        for s in steps.next().unwrap_or_default().lines().filter(|l| !l.trim().is_empty()) {
            kernel = apply(&kernel, &s.parse()?).map_err(|e| format!("kernel {i}: {e}\n{kernel}"))?;
        }
        out.push(kernel);
    }
    Ok(out)
}

/// The outputs of a graph whose kernels are executed as loops, after they have been printed and parsed. `None` if that takes too long.
pub fn outputs(
    graph: &Graph,
    kernels: &KernelGraph,
    loops: &[Kernel],
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Option<Vec<Tensor>>, String> {
    match all_outputs(graph, kernels, loops, inputs) {
        Err(e) if e.contains("statements are executed") => Ok(None),
        all => all.map(Some),
    }
}

fn all_outputs(
    graph: &Graph,
    kernels: &KernelGraph,
    loops: &[Kernel],
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<Tensor>, String> {
    let mut nests = vec![];
    let facts = Facts::of(graph, kernels);
    for (i, (k, kernel)) in kernels.kernels.iter().zip(loops).enumerate() {
        let shown = kernel.to_string();
        let parsed = text::parse(&shown).map_err(|e| format!("kernel {i}: {e}\n{shown}"))?;
        if parsed.to_string() != shown {
            return Err(format!("kernel {i} is printed otherwise after it is parsed:\n{shown}{parsed}"));
        }
        verify(&parsed).map_err(|e| format!("kernel {i}: {}\n{shown}", e.join("\n")))?;
        let races = races(&parsed);
        if !races.is_empty() {
            return Err(format!("kernel {i}: {}\n{shown}", races.join("\n")));
        }
        // Loops stay inside of their tensors where the kernel does.
        let outside: Vec<String> = bounds(&parsed, &facts.sizes).iter().map(ToString::to_string).collect();
        let proven = prove(kernels, k, &facts, STEPS).0.is_in_bounds();
        if !outside.is_empty() && proven {
            return Err(format!("kernel {i}: {}\n{shown}", outside.join("\n")));
        }
        if !outside.is_empty() {
            println!("kernel {i} is not proven to be in bounds: {}", outside.join("; "));
        }
        // Steps keep that each element of a result is stored once.
        let several = once(&parsed);
        if !several.is_empty() && once(&nest::nest(k, kernels)?).is_empty() {
            return Err(format!("kernel {i}: {}\n{shown}", several.join("\n")));
        }
        if !several.is_empty() {
            println!("kernel {i} is not proven to store each element once: {}", several.join("; "));
        }
        nests.push(Nest { kernel: parsed, tensors: nest::tensors(k) });
    }
    let mut extents = vec![];
    for b in &graph.inputs {
        let given = inputs.get(&*b.name).ok_or("an input is missing")?;
        extents.extend(graph.ty(b.value).shape.iter().zip(given.shape.iter().map(|n| *n as i64)));
    }
    let found = symbols::bind(&extents, &|_| None);
    let mut sizes: BTreeMap<String, i64> =
        found.into_iter().map(|f| (f.symbol.to_string(), f.value)).collect();
    // States that grow are empty before the first run.
    for g in graph.states.iter().filter_map(|s| s.growth.as_ref()) {
        sizes.entry(g.length.to_string()).or_insert(0);
    }
    let state = |i: usize| match kernels.tensors[i].kind {
        TensorKind::State { state, .. } => Some(state),
        _ => None,
    };
    let home = (0..kernels.tensors.len())
        .map(|mut i| {
            while let TensorKind::Under(over) = kernels.tensors[i].kind {
                i = over;
            }
            state(i).and_then(|s| (0..i).find(|j| state(*j) == Some(s))).unwrap_or(i)
        })
        .collect();
    let mut run = Run { kernels, nests, sizes, memory: vec![vec![]; kernels.tensors.len()], home };
    for (i, t) in kernels.tensors.iter().enumerate() {
        run.memory[i] = match &t.kind {
            TensorKind::Input(n) => {
                let name = graph.inputs.get(*n).ok_or("an input that does not exist")?.name.to_string();
                inputs.get(&name).and_then(Tensor::scalars).ok_or("an input is missing")?
            }
            TensorKind::Const(c) => c.scalars().ok_or("a constant without elements")?,
            TensorKind::State { state, .. } if run.home[i] == i => match &graph.states[*state].initial {
                Some(initial) => initial.scalars().ok_or("a state without elements")?,
                None => vec![],
            },
            _ => vec![],
        };
    }
    run.range(0..kernels.kernels.len(), kernels.repeats.len())?;
    let mut out = vec![];
    for i in 0..graph.outputs.len() {
        let of = |t: &wgfc_compiler::kernel::KernelTensor| matches!(t.kind, TensorKind::Output(n) if n == i);
        let t = kernels.tensors.iter().position(of).ok_or("an output is missing")?;
        run.room(t)?;
        let ty = &kernels.tensors[t].ty;
        let shape = ty.shape.iter().map(|d| Ok(run.size(d)? as usize)).collect::<Result<_, String>>()?;
        out.push(Tensor::from_scalars(ty.dtype, shape, &run.memory[run.home[t]]));
    }
    Ok(out)
}

impl Run<'_> {
    fn size(&self, d: &wgfc_ir::Poly) -> Result<i64, String> {
        let value = d.eval_syms(&|s| self.sizes.get(s).copied());
        value.ok_or_else(|| format!("`{d}` has no value"))
    }

    /// Sees to it that a tensor has its elements.
    fn room(&mut self, t: usize) -> Result<(), String> {
        let ty = &self.kernels.tensors[t].ty;
        let len = ty.shape.iter().map(|d| self.size(d)).product::<Result<i64, _>>()? as usize;
        self.memory[self.home[t]].resize(len, Scalar { dtype: ty.dtype, bits: 0 });
        Ok(())
    }

    /// Runs kernels, of which the first `repeats` repetitions may repeat some: inner ones come later in the list.
    fn range(&mut self, range: Range<usize>, repeats: usize) -> Result<(), String> {
        let mut next = range.start;
        while next < range.end {
            let inside =
                |r: &wgfc_compiler::kernel::Repeat| r.kernels.start == next && r.kernels.end <= range.end;
            let all = &self.kernels.repeats;
            let first = all.len() - repeats;
            let found = all.iter().enumerate().skip(first).find(|(_, r)| inside(r));
            let Some((i, r)) = found else {
                self.kernel(next)?;
                next += 1;
                continue;
            };
            let rest = all.len() - i - 1;
            let most = r.until.map_or(1, |u| u.rounds);
            for _ in 0..most {
                for _ in 0..self.size(&r.times)? {
                    self.range(r.kernels.clone(), rest)?;
                }
                let ended =
                    r.until.is_some_and(|u| self.memory[self.home[u.word]].iter().all(|s| s.bits == 0));
                if ended {
                    break;
                }
            }
            next = r.kernels.end;
        }
        Ok(())
    }

    fn kernel(&mut self, i: usize) -> Result<(), String> {
        let tensors = self.nests[i].tensors.clone();
        tensors.iter().try_for_each(|t| self.room(*t))?;
        let mut buffers: Vec<Vec<Scalar>> =
            tensors.iter().map(|t| self.memory[self.home[*t]].clone()).collect();
        let sizes = self.sizes.clone();
        let kernel = &self.nests[i].kernel;
        let thorough = std::env::var_os("WGFC_THOROUGH").is_some();
        let max_statements = if thorough { u64::MAX } else { MOST };
        let options = Options { max_statements, ..Options::default() };
        interpret::run(kernel, &|s| sizes.get(s).copied(), &mut buffers, &options)
            .map_err(|e| format!("kernel {i}: {e}\n{kernel}"))?;
        let written: Vec<usize> = self.kernels.kernels[i].writes();
        for (t, b) in tensors.iter().zip(buffers).filter(|(t, _)| written.contains(t)) {
            self.memory[self.home[*t]] = b;
        }
        for (name, t) in self.kernels.computed.iter().filter(|(_, t)| written.contains(t)) {
            let value = self.memory[self.home[*t]].first().map_or(0, |s| s.as_i64());
            self.sizes.insert(name.to_string(), value);
        }
        Ok(())
    }
}
