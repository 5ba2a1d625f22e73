//! The simulations: their models, sizes and seeded inputs.

use std::collections::BTreeMap;
use wgfc::random::Rng;
use wgfc::{DType, Tensor};

/// The form in which the number of steps enters the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// There is no loop.
    None,
    /// The value of the input `steps`.
    Value,
    /// The extent `steps` of the scanned input.
    Extent,
}

/// The work of one workgroup of the hand-written kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// One individual for each of its threads.
    Threads,
    /// One individual at a time.
    One,
    /// One body at a time, for one step per dispatch.
    OneStep,
}

/// A simulation that `wgfc bench loops` runs.
pub struct Workload {
    pub name: &'static str,
    /// The ONNX model's bytes.
    pub model: &'static [u8],
    /// The hand-written kernel. Its bindings are the inputs and then the outputs of the graph, in order. The constants
    /// `POPULATION`, `STEPS` and `DIMS` are prepended to it.
    pub wgsl: &'static str,
    pub share: Share,
    /// The bytes of workgroup memory that the hand-written kernel uses.
    pub workgroup_bytes: u32,
    /// The graph's name for the number of individuals.
    pub individuals: &'static str,
    pub steps: Steps,
    pub usual: Size,
    /// The number of steps up to which results are comparable: in chaotic dynamics, rounding errors of a sine grow with each
    /// step.
    pub horizon: usize,
}

/// The size of a workload; `dims` are the dimensions of Rastrigin's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub population: usize,
    pub steps: usize,
    pub dims: usize,
}

macro_rules! workload {
    ($name:literal, $usual:expr, $steps:expr, $share:expr, $bytes:expr, $individuals:literal, $horizon:expr) => {
        Workload {
            name: $name,
            model: include_bytes!(concat!("../../../fixtures/simulations/", $name, "/model.onnx")),
            wgsl: include_str!(concat!("../../../benches/loops/", $name, ".wgsl")),
            share: $share,
            workgroup_bytes: $bytes,
            individuals: $individuals,
            steps: $steps,
            usual: Size { population: $usual[0], steps: $usual[1], dims: $usual[2] },
            horizon: $horizon,
        }
    };
}

/// The simulations in the order in which they are reported.
pub const WORKLOADS: [Workload; 9] = [
    workload!("rastrigin", [4096, 1, 2000], Steps::None, Share::One, 512, "population", usize::MAX),
    workload!("cartpole", [4096, 500, 1], Steps::Value, Share::Threads, 0, "population", 100),
    workload!("acrobot", [4096, 500, 1], Steps::Value, Share::Threads, 0, "population", 100),
    workload!("acrobot-rk4", [4096, 500, 1], Steps::Value, Share::Threads, 0, "population", 30),
    workload!("mountaincar", [4096, 200, 1], Steps::Value, Share::Threads, 0, "population", 200),
    workload!("mountaincar-51", [4096, 200, 1], Steps::Value, Share::Threads, 0, "population", 200),
    workload!("montecarlo", [4096, 100_000, 1], Steps::Value, Share::Threads, 0, "population", usize::MAX),
    workload!("nbody", [512, 200, 1], Steps::Value, Share::OneStep, 1024, "bodies", 50),
    workload!("portfolio", [10_000, 1500, 1], Steps::Extent, Share::Threads, 0, "population", 500),
];

/// Random numbers for a seed, with a separate sequence for each name.
struct Draw(u64);

impl Draw {
    fn uniform(&self, what: &str, n: usize, low: f64, high: f64) -> Vec<f32> {
        let mut rng = Rng::new(self.0, what);
        (0..n).map(|_| (low + (high - low) * unit(&mut rng)) as f32).collect()
    }
    /// Approximately normal numbers with mean 0 and standard deviation `scale`: sums of four uniform ones.
    fn normal(&self, what: &str, n: usize, scale: f64) -> Vec<f32> {
        let mut rng = Rng::new(self.0, what);
        let mut four = || (0..4).map(|_| unit(&mut rng)).sum::<f64>();
        (0..n).map(|_| ((four() - 2.0) * (3f64.sqrt() * scale)) as f32).collect()
    }
}

/// A random multiple of 2⁻²⁴ in [0, 1).
fn unit(rng: &mut Rng) -> f64 {
    (rng.bits() >> 40) as f64 / f64::from(1 << 24)
}

impl Workload {
    /// The workload of this name.
    pub fn named(name: &str) -> Option<&'static Workload> {
        WORKLOADS.iter().find(|w| w.name == name)
    }

    /// The inputs in the order of the graph's, equal to those of scripts/simulation_reference.py.
    pub fn inputs(&self, size: Size, seed: u64) -> Vec<(&'static str, Tensor)> {
        let (d, n) = (Draw(seed), size.population);
        let matrix = |columns: usize, v: Vec<f32>| Tensor::from_f32(vec![n, columns], &v);
        match self.name {
            "rastrigin" => {
                vec![("x", matrix(size.dims, d.uniform("x", n * size.dims, -5.12, 5.12)))]
            }
            "cartpole" => {
                // A policy that mostly pushes towards the side to which the pole leans.
                let mut genomes = d.normal("genomes", n * 58, 0.3);
                for g in genomes.chunks_exact_mut(58) {
                    for (at, lean) in [(16, 1.0), (24, 1.0), (17, -1.0), (25, -1.0), (41, 1.0), (42, 1.0)] {
                        g[at] += lean;
                    }
                }
                let state = d.uniform("state", n * 4, -0.05, 0.05);
                vec![("genomes", matrix(58, genomes)), ("state", matrix(4, state))]
            }
            "acrobot" | "acrobot-rk4" => vec![
                ("genomes", matrix(163, d.normal("genomes", n * 163, 1.0))),
                ("state", matrix(4, d.uniform("state", n * 4, -0.1, 0.1))),
            ],
            "mountaincar" => {
                // A policy that mostly pushes in the direction of the velocity.
                let mut genomes = d.normal("genomes", n * 9, 1.0);
                for g in genomes.chunks_exact_mut(9) {
                    for (i, g) in g.iter_mut().enumerate() {
                        *g *= [0.3, 10.0, 0.2][i / 3];
                    }
                    g[3] += -30.0;
                    g[5] += 30.0;
                }
                let position = Tensor::from_f32(vec![n], &d.uniform("position", n, -0.6, -0.4));
                vec![("genomes", matrix(9, genomes)), ("position", position)]
            }
            "mountaincar-51" => {
                // As above, by a hidden layer of 8.
                let mut genomes = d.normal("genomes", n * 51, 1.0);
                for g in genomes.chunks_exact_mut(51) {
                    for (i, g) in g.iter_mut().enumerate() {
                        *g *= if (8..16).contains(&i) { 10.0 } else { 0.3 };
                    }
                    g[8..16].iter_mut().for_each(|g| *g += 30.0);
                    for unit in g[24..48].chunks_exact_mut(3) {
                        unit[0] -= 1.0;
                        unit[2] += 1.0;
                    }
                }
                let position = Tensor::from_f32(vec![n], &d.uniform("position", n, -0.6, -0.4));
                vec![("genomes", matrix(51, genomes)), ("position", position)]
            }
            "montecarlo" => {
                let mut rng = Rng::new(seed, "seeds");
                let bytes = (0..n).flat_map(|_| ((rng.bits() >> 32) as u32).to_le_bytes()).collect();
                let zeros = || Tensor::zeros(DType::U32, vec![n]);
                vec![("seeds", Tensor::new(DType::U32, vec![n], bytes).unwrap_or_else(|_| zeros()))]
            }
            "nbody" => vec![
                ("position", matrix(3, d.uniform("position", n * 3, -4.0, 4.0))),
                ("velocity", matrix(3, d.normal("velocity", n * 3, 0.1))),
                ("mass", Tensor::from_f32(vec![n], &d.uniform("mass", n, 0.5, 1.5))),
            ],
            _ => vec![
                ("genomes", matrix(246, d.normal("genomes", n * 246, 1.0))),
                ("signals", Tensor::from_f32(vec![size.steps, 36], &signals(&d, size.steps))),
            ],
        }
    }

    /// The fixed extents of the graph, and the value of its input `steps`.
    pub fn fixed(&self, size: Size) -> (BTreeMap<String, i64>, BTreeMap<String, Tensor>) {
        let (steps, mut dims, mut values) = (size.steps as i64, BTreeMap::new(), BTreeMap::new());
        dims.insert(self.individuals.to_owned(), size.population as i64);
        match self.steps {
            Steps::None => drop(dims.insert("dims".to_owned(), size.dims as i64)),
            Steps::Value => drop(values.insert("steps".to_owned(), Tensor::from_i64(vec![], &[steps]))),
            Steps::Extent => drop(dims.insert("steps".to_owned(), steps)),
        }
        (dims, values)
    }
}

/// The signals of each step: three of the market, an unused one, scores, and returns. Scores change much every eighth step
/// and a little in each. Most of them are positive: among few equal shares, rounding would decide which ones leave the band.
fn signals(d: &Draw, steps: usize) -> Vec<f32> {
    let market = d.uniform("market", steps * 4, -1.0, 1.0);
    let slow = d.normal("slow", (steps / 8 + 1) * 16, 1.0);
    let scores = d.normal("scores", steps * 16, 0.1);
    let returns = d.normal("returns", steps * 16, 0.01);
    let row = |t: usize| {
        let market = market[t * 4..][..4].iter().copied();
        let scores = scores[t * 16..][..16].iter().zip(&slow[t / 8 * 16..][..16]).map(|(a, b)| 0.7 + (a + b));
        market.chain(scores).chain(returns[t * 16..][..16].iter().map(|r| 0.0005 + r)).collect::<Vec<_>>()
    };
    (0..steps).flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc::ir::Scalar;

    /// The expected sums come from scripts/simulation_reference.py.
    #[test]
    fn inputs_are_those_of_the_reference() {
        let sums: [&[f64]; 9] = [
            &[15.564233645796776],
            &[10.64458647952415, -0.11553567857481539],
            &[-15.408986798487604, -0.23107135714963078],
            &[-15.408986798487604, -0.23107135714963078],
            &[41.11629888298921, -2.4795993864536285],
            &[1226.0338487026747, -2.4795993864536285],
            &[13368629175.0],
            &[-6.956340312957764, -0.04388033039867878, 4.103925049304962],
            &[-20.5750774780754, 117.13810068799648],
        ];
        for (w, sums) in WORKLOADS.iter().zip(sums) {
            let inputs = w.inputs(Size { population: 5, steps: 13, dims: 7 }, 1);
            assert_eq!(inputs.len(), sums.len());
            for ((name, t), want) in inputs.iter().zip(sums) {
                let sum: f64 = t.scalars().unwrap().into_iter().map(Scalar::as_f64).sum();
                assert!((sum - want).abs() < 1e-9, "{} {name}: {sum} instead of {want}", w.name);
            }
        }
    }
}
