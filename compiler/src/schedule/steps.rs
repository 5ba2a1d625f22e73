//! Schedules that are steps on a kernel's loop nest.

use super::maps::{Flat, Map, grouped, is_long};
use super::products::Product;
use super::{Context, Schedule};
use crate::kernel::{Family, Kernel, KernelGraph};
use crate::nest::{nest, structural};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use wgfc_ir::Poly;
use wgfc_loops::steps::{Step, apply};
use wgfc_loops::{Kind, Name, Space, Tensor, levels, races};

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

/// A nest under scheduling. Loops are known by their number, in the order of the text: any name may be taken by a symbol.
#[derive(Clone)]
struct Nest {
    kernel: wgfc_loops::Kernel,
    steps: Vec<Step>,
}

impl Nest {
    fn new(kernel: wgfc_loops::Kernel) -> Nest {
        Nest { kernel, steps: vec![] }
    }

    fn name(&self, i: usize) -> Result<Name, String> {
        self.kernel.vars.get(i).cloned().ok_or_else(|| format!("there is no loop {i}"))
    }

    fn apply(mut self, step: Step) -> Result<Nest, String> {
        self.kernel = apply(&self.kernel, &step).map_err(|e| e.to_string())?;
        self.steps.push(step);
        Ok(self)
    }

    fn place(self, i: usize, kind: Kind) -> Result<Nest, String> {
        let name = self.name(i)?;
        self.apply(Step::Place(name, kind))
    }

    fn split(self, i: usize, by: impl Into<Poly>) -> Result<Nest, String> {
        let name = self.name(i)?;
        self.apply(Step::Split(name, by.into()))
    }

    /// Makes loop `i` and the one inside of it one.
    fn fuse(self, i: usize) -> Result<Nest, String> {
        let (outer, inner) = (self.name(i)?, self.name(i + 1)?);
        self.apply(Step::Fuse(outer, inner))
    }

    /// Makes an invocation of each point of the outermost loops, of which there are so many. They become loops 0 and 1.
    fn invocations(mut self, loops: usize, threads: u32) -> Result<Nest, String> {
        if loops == 0 {
            return Ok(self);
        }
        for _ in 1..loops {
            self = self.fuse(0)?;
        }
        self.split(0, i64::from(threads))?.place(0, Kind::Grid)?.place(1, Kind::Invocation)
    }

    /// Makes groups of neighbouring elements of a map's loop, and an invocation of some groups, a workgroup's width apart.
    fn flat(mut self, kernel: &Kernel, schedule: &Flat) -> Result<Nest, String> {
        let Flat { threads, elements, unroll } = *schedule;
        let by = Poly::from(i64::from(elements));
        let whole = matches!(&kernel.family, Family::Map(k) if k.elements.modulo(&by, &[]).is(0));
        if elements > 1 && (!whole || is_long(kernel, elements)) {
            return self.groups(kernel, schedule, whole);
        }
        if elements > 1 {
            // Over the axes quotients and remainders of neighbours are told to be equal.
            let axes = grouped(kernel, &by)
                .ok_or_else(|| format!("the elements are no whole number of groups of {elements}"))?;
            for extent in axes.iter().skip(1).rev() {
                self = self.split(0, extent.clone())?;
            }
            self = self.split(axes.len() - 1, by)?;
            for _ in 1..axes.len() {
                self = self.fuse(0)?;
            }
        }
        if unroll == 1 {
            let done = self.invocations(1, threads)?;
            return if elements > 1 { done.place(2, Kind::Vector) } else { Ok(done) };
        }
        let first = self.name(0)?;
        let all = i64::from(threads * unroll);
        // Points behind the last one read what it reads, unless it also writes there: then a condition leaves them out.
        self = match self.clone().apply(Step::Clamp(first, all)) {
            Ok(clamped) => clamped,
            Err(_) => self.split(0, all)?,
        };
        self = self.split(1, i64::from(threads))?.place(0, Kind::Grid)?;
        let (group, own) = (self.name(1)?, self.name(2)?);
        self = self.apply(Step::Swap(group, own))?.place(1, Kind::Invocation)?;
        if elements > 1 {
            self = self.fuse(2)?;
        }
        let points = self.name(2)?;
        self.apply(Step::Fetch(points))?.place(2, Kind::Vector)
    }

    /// Makes an invocation of each group of neighbouring elements of a map's loop, of which the last one may have fewer than the others, or
    /// whose elements are too long to be written out.
    fn groups(mut self, kernel: &Kernel, schedule: &Flat, whole: bool) -> Result<Nest, String> {
        let Flat { threads, elements, unroll } = *schedule;
        if unroll != 1 {
            return Err(
                "an invocation makes one group of neighbours that are computed one after another".into()
            );
        }
        if whole {
            return self.split(0, i64::from(elements))?.invocations(1, threads);
        }
        self = self.split(0, i64::from(threads) * i64::from(elements))?.split(1, i64::from(elements))?;
        self = self.place(0, Kind::Grid)?.place(1, Kind::Invocation)?;
        if is_long(kernel, elements) {
            return Ok(self);
        }
        let group = self.name(2)?;
        self.apply(Step::Version(group))?.place(2, Kind::Vector)
    }

    /// Writes out so many points of loop `i` at a time, or fewer that divide their number.
    fn unrolled(self, i: usize, extent: Option<i64>, points: u32) -> Result<Nest, String> {
        let Some(extent) = extent else { return Ok(self) };
        if extent == i64::from(points) {
            return self.place(i, Kind::Unroll);
        }
        let Some(part) = (2..=i64::from(points)).rev().find(|part| extent % part == 0) else {
            return Ok(self);
        };
        self.split(i, part)?.place(i + 1, Kind::Unroll)
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
            (Schedule::PrefixScan(s), Family::PrefixScan(_)) if s.lanes == 1 => {
                begin().and_then(|n| n.invocations(1, s.threads))
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
}
