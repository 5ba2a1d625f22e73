//! Schedules that are steps on a kernel's loop nest.

use super::products::Product;
use super::{Context, Schedule};
use crate::kernel::{Family, Kernel, KernelGraph};
use crate::nest::nest;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use wgfc_loops::steps::{Step, apply};
use wgfc_loops::{Kind, levels, races};

/// Steps on the [nest](crate::nest) of a kernel of any family, one after another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Steps(Arc<[Step]>);

impl Steps {
    /// Steps in this order.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Steps {
        Steps(steps.into_iter().collect())
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
        races(&kernel).into_iter().next()
    }

    /// Invocations of a workgroup after the steps; 0 where they do not apply.
    pub(super) fn threads(&self, kernel: &Kernel, graph: &KernelGraph) -> u32 {
        let Ok(kernel) = self.scheduled(kernel, graph) else { return 0 };
        let threads: i64 = levels(&kernel).1.iter().filter_map(|l| l.extent.as_const()).product();
        u32::try_from(threads).unwrap_or(0)
    }
}

/// Elements of the first loop of a nest and of `others` inside of it, in order, each an invocation.
fn invocations(first: &str, others: impl Iterator<Item = String>, threads: u32) -> Vec<Step> {
    let mut out: Vec<Step> = others.map(|o| Step::Fuse(first.into(), o.into())).collect();
    let part = |i: u32| format!("{first}.{i}").into();
    out.push(Step::Split(first.into(), threads.into()));
    out.push(Step::Place(part(0), Kind::Grid));
    out.push(Step::Place(part(1), Kind::Invocation));
    out
}

impl Schedule {
    /// The steps that a schedule consists of, for those from which kernels are written.
    pub fn steps(&self, kernel: &Kernel) -> Option<Steps> {
        let steps = match (self, &kernel.family) {
            (Schedule::Steps(s), _) => return Some(s.clone()),
            (Schedule::Loop(_), Family::Loop(k)) if k.lanes.is_empty() => vec![],
            (Schedule::Loop(s), Family::Loop(k)) => {
                invocations("lane0", (1..k.lanes.len()).map(|i| format!("lane{i}")), s.threads)
            }
            (Schedule::PrefixScan(s), Family::PrefixScan(_)) if s.lanes == 1 => {
                invocations("row", std::iter::empty(), s.threads)
            }
            (Schedule::Product(Product::Serial(s)), Family::Matmul(k)) => {
                let others = ["row", "column"].map(str::to_owned);
                let mut steps = invocations("batch", others.into_iter(), s.threads);
                let (depth, unrolled) = (k.k.as_const(), i64::from(s.unrolled));
                let divides = |part: &i64| depth.is_some_and(|d| d % part == 0);
                if depth == Some(unrolled) {
                    steps.push(Step::Place("depth".into(), Kind::Unroll));
                } else if let Some(part) = (2..=unrolled).rev().find(divides) {
                    steps.push(Step::Split("depth".into(), part));
                    steps.push(Step::Place("depth.1".into(), Kind::Unroll));
                }
                steps
            }
            _ => return None,
        };
        Some(Steps(steps.into()))
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
        let steps = text.split(',').filter(|s| !s.is_empty()).map(|s| s.replace(':', " ").parse());
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
        assert_eq!("split:i".parse::<Steps>(), Err("`split i` is no step".to_owned()));
    }
}
