//! Schedules that are steps on a kernel's loop nest.

use super::maps::{Flat, Map};
use super::nested::Nest;
use super::products::problem::problem;
use super::products::{Product, Tiled};
use super::{Context, Schedule};
use crate::kernel::{Family, Kernel, KernelGraph};
use crate::nest::{nest, structural};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use wgfc_loops::steps::{Step, apply};
use wgfc_loops::{Space, Tensor, levels, races};

/// Steps on the [nest](crate::nest) of a kernel of any family, one after another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Steps(Arc<[Step]>);

impl Steps {
    /// Steps in this order.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Steps {
        Steps(steps.into_iter().collect())
    }

    /// The steps of a map whose elements are shared out so.
    ///
    /// # Errors
    /// The reason for which the kernel does not go so.
    pub fn flat(kernel: &Kernel, graph: &KernelGraph, schedule: &Flat) -> Result<Steps, String> {
        Nest::new(nest(kernel, graph)?).flat(kernel, schedule).map(|n| Steps::new(n.steps))
    }

    /// The steps of a product in tiles: blocks of results for each invocation, both operands copied to workgroup memory.
    ///
    /// # Errors
    /// The reason for which the kernel does not go so: operands that are computed from tensors, more than one sum, slices of k or two buffers.
    pub fn tiled(kernel: &Kernel, graph: &KernelGraph, schedule: &Tiled) -> Result<Steps, String> {
        let Tiled { shape, buffers, unroll, rows_first } = *schedule;
        let nest = Nest::new(nest(kernel, graph)?).product(shape, buffers, unroll, rows_first)?;
        Ok(Steps::new(nest.steps))
    }

    /// The kernel in the loop form after the steps.
    ///
    /// # Errors
    /// The step that does not apply and the reason, or a contradiction in the kernel.
    pub fn scheduled(&self, kernel: &Kernel, graph: &KernelGraph) -> Result<wgfc_loops::Kernel, String> {
        let nest = nest(kernel, graph)?;
        self.0.iter().try_fold(nest, |k, s| apply(&k, s).map_err(|e| e.to_string()))
    }

    /// The reason for which a device cannot run the kernel after the steps, if there is one.
    pub fn misfit(&self, kernel: &Kernel, cx: &Context) -> Option<String> {
        let kernel = match self.scheduled(kernel, cx.graph) {
            Ok(kernel) => kernel,
            Err(why) => return Some(why),
        };
        let threads: i64 = levels(&kernel).1.iter().filter_map(|l| l.extent.as_const()).product();
        let most = i64::from(cx.device.max_invocations);
        if threads > most {
            return Some(format!("a workgroup has {threads} invocations, and at most {most} on the device"));
        }
        let shared = kernel.tensors.iter().filter(|t| t.space == Space::Workgroup);
        let size = |t: &Tensor| t.elements().as_const().unwrap_or(i64::MAX);
        // Whatever its type, an element takes a word, or two.
        let bytes = shared.fold(0i64, |n, t| {
            n.saturating_add(size(t).saturating_mul(if t.dtype.bits() == 64 { 8 } else { 4 }))
        });
        let most = i64::from(cx.device.max_workgroup_bytes);
        if bytes > most {
            return Some(format!("it takes {bytes} bytes of workgroup memory, and the device has {most}"));
        }
        races(&kernel).into_iter().next()
    }

    /// Invocations of a workgroup after the steps; 0 where they do not apply.
    pub(super) fn threads(&self, kernel: &Kernel, graph: &KernelGraph) -> u32 {
        let Ok(kernel) = self.scheduled(kernel, graph) else { return 0 };
        let threads: i64 = levels(&kernel).1.iter().filter_map(|l| l.extent.as_const()).product();
        u32::try_from(threads).unwrap_or(0)
    }
}

impl Schedule {
    /// The kernel in the loop form as the schedule says, for schedules from which kernels are written so.
    ///
    /// # Errors
    /// A step that does not apply, or a contradiction in the kernel.
    pub fn scheduled(
        &self,
        kernel: &Kernel,
        graph: &KernelGraph,
    ) -> Option<Result<wgfc_loops::Kernel, String>> {
        let begin = || structural(kernel, graph).map(Nest::new);
        let end = match (self, &kernel.family) {
            (Schedule::Steps(s), _) => return Some(s.scheduled(kernel, graph)),
            (Schedule::Loop(s), Family::Loop(k)) => {
                begin().and_then(|n| n.invocations(k.lanes.len(), s.threads))
            }
            (Schedule::Map(Map::Flat(s)), Family::Map(_)) => begin().and_then(|n| n.flat(kernel, s)),
            (Schedule::Map(Map::Tiled(s)), Family::Map(_)) => begin().and_then(|n| n.tiled(kernel, s)),
            (Schedule::PrefixScan(s), Family::PrefixScan(_)) if s.lanes == 1 => {
                begin().and_then(|n| n.invocations(1, s.threads))
            }
            (Schedule::Product(Product::Tiled(s)), Family::Matmul(_))
                if 4 * s.unroll == s.shape.k && problem(kernel).is_some_and(|p| p.is_plain(&s.shape)) =>
            {
                let nest = begin().and_then(|n| n.product(s.shape, s.buffers, s.unroll, s.rows_first));
                // Other tiles are written by the template: steps take up to 1.14 times as long with a loop over k (H100), and their texts are longer
                // where tiles are not whole.
                Ok(nest.ok()?)
            }
            (Schedule::Product(Product::Serial(s)), Family::Matmul(k)) => begin()
                .and_then(|n| n.invocations(3, s.threads))
                .and_then(|n| n.unrolled(2, k.k.as_const(), s.unrolled)),
            _ => return None,
        };
        Some(end.map(|n| n.kernel))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|s| s.to_string().replace(' ', ":")).collect();
        f.write_str(&all.join(","))
    }
}

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Steps, String> {
        // A step begins with a letter, after a comma outside of parentheses: `order:1,0` and `max(n,1)` are parts of one.
        let (mut all, mut depth) = (vec![String::new()], 0);
        for (i, c) in text.char_indices() {
            depth += i32::from(c == '(') - i32::from(c == ')');
            let letter = text[i..].chars().nth(1).is_some_and(|next| next.is_ascii_alphabetic());
            match all.last_mut() {
                Some(last) if c != ',' || depth > 0 || !letter => last.push(c),
                _ => all.push(String::new()),
            }
        }
        let steps = all.iter().filter(|s| !s.is_empty()).map(|s| s.replace(':', " ").parse());
        Ok(Steps(steps.collect::<Result<_, String>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Expected;
    use crate::device::DeviceProfile;
    use crate::kernel::parse;
    use crate::schedule::products::TileShape;
    use wgfc_ir::Scalar;
    use wgfc_loops::interpret::{Options, run};

    #[test]
    fn steps_that_do_not_fit_are_refused_with_the_reason() {
        let graph = parse(
            "t0: f32[n] input 0 as \"x\"
t1: f32[n] output 0

kernel 0 map [n]
  e0: f32 = t0[%0]
  e1: f32 = exp(e0)
  t1[%0] = e1
",
        )
        .unwrap();
        let (device, expect) = (DeviceProfile::default(), Expected::default());
        let cx = Context { graph: &graph, device: &device, expect: &expect };
        for (steps, why) in [
            ("split:i:64,grid:i.0,invocation:i.1", None),
            ("", None),
            ("split:j:64", Some("`split j 64`: there is no loop `j`; the loops are i")),
            (
                "split:i:100000,grid:i.0,invocation:i.1",
                Some("a workgroup has 100000 invocations, and at most 256 on the device"),
            ),
        ] {
            let steps: Steps = steps.parse().unwrap();
            assert_eq!(steps.misfit(&graph.kernels[0], &cx).as_deref(), why, "{steps}");
        }
        let text = "split:i:max(4,n),stage:x:i.0:order:1,0:pad:1,fetch:i.1";
        assert_eq!(text.parse::<Steps>().unwrap().to_string(), text);
        assert_eq!("split:i".parse::<Steps>(), Err("`split i` is no step".to_owned()));
    }

    #[test]
    fn products_in_tiles_have_steps() {
        let graph = |x: &str, y: &str, ends: &str| {
            parse(&format!(
                "t0: {ends} input 0 as \"x\"
t1: {ends} input 1 as \"w\"
t2: f32[n] input 2 as \"bias\"
t3: f32[b, m, n] output 0

kernel 0 matmul [b, m, n, k]
  e0: f32 = t0[{x}]
  e1: f32 = t1[{y}]
  e2: f32 = acc0
  e3: f32 = t2[%2]
  e4: f32 = add(e2, e3)
  acc0 = sum(e0 * e1)
  t3[m*n*%0 + n*%1 + %2] = e4
"
            ))
            .unwrap()
        };
        let tiled = |rows, cols, k, thread_rows, thread_cols, unroll, rows_first| Tiled {
            shape: TileShape { rows, cols, k, thread_rows, thread_cols, split: 1 },
            buffers: 1,
            unroll,
            rows_first,
        };
        let all = "f32[b, k, m + n]";
        for (x, y) in
            [("k*m*%0 + k*%1 + %3", "k*n*%0 + n*%3 + %2"), ("k*m*%0 + m*%3 + %1", "k*n*%0 + k*%2 + %3")]
        {
            let graph = graph(x, y, all);
            let kernel = &graph.kernels[0];
            for schedule in [
                tiled(32, 32, 8, 4, 8, 1, false),
                tiled(64, 64, 16, 8, 8, 4, true),
                tiled(64, 128, 16, 8, 8, 2, false),
                tiled(16, 32, 16, 2, 4, 2, false),
            ] {
                let steps = Steps::tiled(kernel, &graph, &schedule).unwrap();
                assert_eq!(steps.to_string().parse::<Steps>().unwrap(), steps);
                let after = steps.scheduled(kernel, &graph).unwrap();
                assert_eq!(races(&after), [""; 0], "{after}");
                let sizes = |s: &str| match s {
                    "b" => Some(2),
                    "m" => Some(37),
                    "n" => Some(45),
                    "k" => Some(21),
                    _ => None,
                };
                let results = |k: &wgfc_loops::Kernel| {
                    let contents = |(i, t): (usize, &Tensor)| {
                        let elements = t.elements().eval_syms(&sizes).unwrap();
                        let storage = matches!(t.space, Space::Storage(_));
                        let value = |e: i64| ((e * 7 + 3 * i as i64) % 11 - 5) as f64;
                        let count = if storage { elements } else { 0 };
                        (0..count).map(|e| Scalar::from_f64(t.dtype, value(e))).collect()
                    };
                    let mut buffers: Vec<Vec<Scalar>> = k.tensors.iter().enumerate().map(contents).collect();
                    run(k, &sizes, &mut buffers, &Options::default()).unwrap();
                    buffers.swap_remove(3)
                };
                assert_eq!(results(&after), results(&nest(kernel, &graph).unwrap()), "{after}");
            }
        }
        let graph = graph("k*m*%0 + k*%1 + 2*%3", "k*n*%0 + n*%3 + %2", all);
        let why = Steps::tiled(&graph.kernels[0], &graph, &tiled(32, 32, 8, 4, 8, 1, false)).unwrap_err();
        assert_eq!(why, "`x` is not read along a line or k");
    }
}
