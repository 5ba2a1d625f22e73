//! Several plans of one model on a device, which share weights and states.

use crate::error::{NotTaken, RunError};
use crate::gpu::{AdapterSummary, Gpu};
use crate::session::{Encoded, Session, SessionOptions, Started, Value};
use crate::tensor::DeviceTensor;
use wgfc_program::bundle::Plan;
use wgfc_program::program::Port;
use wgfc_program::{Bundle, Program, Tensor};

/// Sessions of the plans of a [`Bundle`] that a device can run, in the bundle's order. Each run uses the first plan that accepts
/// the inputs.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let (one, many) = (wgfc_runtime::testing::doubling(), wgfc_runtime::testing::doubling());
/// use wgfc_program::{Bundle, Tensor};
/// use wgfc_runtime::{Plans, session::SessionOptions};
/// let bundle = Bundle::new(vec![("one".to_owned(), one), ("many".to_owned(), many)]);
/// let mut plans = Plans::new_blocking(gpu, &bundle, SessionOptions::default())?;
/// assert_eq!(plans.names().collect::<Vec<_>>(), ["one", "many"]);
/// let outputs = plans.run_blocking(&[("x", Tensor::from_f32(vec![1], &[2.0]))])?;
/// assert_eq!(outputs[0].1.to_f32s(), Some(vec![4.0]));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Plans {
    plans: Vec<(String, Session)>,
    left_out: Vec<NotTaken>,
}

/// The reason for which the plan `p` cannot share states and ports with `first`; `None` if it can.
fn differs(p: &Program, first: &Program) -> Option<String> {
    let ports = |ports: &[Port]| ports.iter().map(|p| (p.name.clone(), p.dtype)).collect::<Vec<_>>();
    if ports(&p.inputs) != ports(&first.inputs) || ports(&p.outputs) != ports(&first.outputs) {
        return Some("its inputs or outputs are not those of the first plan".to_owned());
    }
    let same = |a: &wgfc_program::program::State, b: &wgfc_program::program::State| {
        let growth = |s: &wgfc_program::program::State| s.growth.as_ref().map(|g| (g.axis, g.length.clone()));
        (&a.name, a.dtype, &a.shape, &a.initial) == (&b.name, b.dtype, &b.shape, &b.initial)
            && growth(a) == growth(b)
    };
    let all = p.states.iter().all(|s| first.states.iter().any(|o| same(s, o)));
    (p.states.len() != first.states.len() || !all)
        .then(|| "its states are not those of the first plan".to_owned())
}

/// The plans that a device can run, and the reasons for which the others were left out. Plans for adapters of other kinds are
/// taken only if there are no others.
///
/// # Errors
/// [`RunError::NoPlan`] if the device can run none of the plans.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let program = wgfc_runtime::testing::doubling();
/// use wgfc_program::Bundle;
/// let bundle = Bundle::new(vec![("general".to_owned(), program)]);
/// let (taken, left_out) = wgfc_runtime::plans::choose(&bundle, gpu.summary())?;
/// assert_eq!((taken.len(), left_out.len()), (1, 0));
/// # Ok(()) }
/// ```
pub fn choose<'b>(
    bundle: &'b Bundle,
    device: &AdapterSummary,
) -> Result<(Vec<&'b Plan>, Vec<NotTaken>), RunError> {
    let (mut taken, mut left_out): (Vec<&Plan>, Vec<NotTaken>) = (vec![], vec![]);
    // A lone plan is not checked here: making its session reports which kernel needs the missing feature.
    let alone = bundle.plans.len() == 1;
    let lacks = |plan: &Plan| if alone { vec![] } else { device.limits.lacks(&plan.needs) };
    let other = |plan: &Plan| plan.adapter.as_ref().filter(|kind| **kind != device.kind).cloned();
    let others = bundle.plans.iter().all(|plan| other(plan).is_some() || !lacks(plan).is_empty());
    // Plans for this kind come first.
    let (own, any): (Vec<&Plan>, Vec<&Plan>) =
        bundle.plans.iter().partition(|plan| plan.adapter.as_ref() == Some(&device.kind));
    for plan in own.into_iter().chain(any) {
        let lacking = lacks(plan);
        let why = match taken.first() {
            _ if !lacking.is_empty() => Some(format!("the device lacks {}", lacking.join(", "))),
            _ if !others && let Some(kind) = other(plan) => Some(format!("it is for {kind} adapters")),
            Some(first) => differs(&plan.program, &first.program),
            None => None,
        };
        match why {
            Some(why) => left_out.push(NotTaken { plan: plan.name.clone(), why }),
            None => taken.push(plan),
        }
    }
    if taken.is_empty() { Err(RunError::NoPlan(left_out)) } else { Ok((taken, left_out)) }
}

impl Plans {
    /// Loads the plans that the device can run. Weights that plans share are uploaded once, and equal kernels are compiled once.
    ///
    /// # Errors
    /// [`RunError::NoPlan`] if the device can run none of the plans; otherwise as [`Session::family`].
    pub async fn new(gpu: &Gpu, bundle: &Bundle, options: SessionOptions) -> Result<Plans, RunError> {
        let (taken, left_out) = choose(bundle, gpu.summary())?;
        let programs: Vec<&Program> = taken.iter().map(|p| &p.program).collect();
        let sessions = Session::family(gpu, &programs, options).await?;
        let names = taken.iter().map(|p| p.name.clone());
        Ok(Plans { plans: names.zip(sessions).collect(), left_out })
    }

    /// A lone plan.
    pub fn of(session: Session) -> Plans {
        Plans { plans: vec![(String::new(), session)], left_out: vec![] }
    }

    /// The names of the plans, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.plans.iter().map(|p| p.0.as_str())
    }
    /// The plans that were left out, and the reasons.
    pub fn left_out(&self) -> &[NotTaken] {
        &self.left_out
    }
    /// The sessions of the plans, in their order. They share weights and states.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.plans.iter().map(|p| &p.1)
    }
    /// The session of one plan.
    pub fn session(&self, plan: usize) -> Option<&Session> {
        self.plans.get(plan).map(|p| &p.1)
    }
    /// The session of one plan.
    pub fn session_mut(&mut self, plan: usize) -> Option<&mut Session> {
        self.plans.get_mut(plan).map(|p| &mut p.1)
    }

    /// The index of the first plan that accepts these inputs.
    ///
    /// # Errors
    /// The error of the inputs if there is one plan, [`RunError::NoFit`] if there are several.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// use wgfc_program::Tensor;
    /// use wgfc_runtime::{Plans, Session, testing};
    /// let mut plans = Plans::of(Session::new_blocking(gpu, &testing::doubling())?);
    /// let plan = plans.select(&[("x", Tensor::from_f32(vec![1], &[1.0]).into())])?;
    /// assert!(plans.session_mut(plan).is_some());
    /// # Ok(()) }
    /// ```
    pub fn select(&self, inputs: &[(&str, Value)]) -> Result<usize, RunError> {
        let mut refused = vec![];
        for (i, (name, session)) in self.plans.iter().enumerate() {
            match session.fits(inputs) {
                Ok(()) => return Ok(i),
                Err(e) if self.plans.len() == 1 => return Err(e),
                Err(e) => refused.push(NotTaken { plan: name.clone(), why: e.to_string() }),
            }
        }
        Err(RunError::NoFit(refused))
    }

    /// [`Session::run`] of the first plan that accepts the inputs.
    ///
    /// # Errors
    /// As [`Plans::select`] and [`Session::run`].
    pub async fn run(&mut self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, RunError> {
        let values: Vec<(&str, Value)> = inputs.iter().map(|(n, t)| (*n, Value::Host(t.clone()))).collect();
        self.run_values(&values, None).await
    }

    /// [`Session::run_values`] of the first plan that accepts the inputs.
    ///
    /// # Errors
    /// As [`Plans::select`] and [`Session::run_values`].
    pub async fn run_values(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        self.first(inputs)?.run_values(inputs, outputs).await
    }

    /// [`Session::run_on_device`] of the first plan that accepts the inputs.
    ///
    /// # Errors
    /// As [`Plans::select`] and [`Session::run_on_device`].
    pub async fn run_on_device(
        &mut self,
        inputs: &[(&str, Value)],
    ) -> Result<Vec<(String, DeviceTensor)>, RunError> {
        self.first(inputs)?.run_on_device(inputs).await
    }

    /// [`Session::start`] of the first plan that accepts the inputs.
    ///
    /// # Errors
    /// As [`Plans::select`] and [`Session::start`].
    pub async fn start(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Started, RunError> {
        self.first(inputs)?.start(inputs, outputs).await
    }

    /// [`Session::encode`] of the first plan that accepts the inputs. As plans share states, what is said there of the runs of
    /// a session holds for the runs of all plans together.
    ///
    /// # Errors
    /// As [`Plans::select`] and [`Session::encode`].
    pub async fn encode(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        inputs: &[(&str, Value)],
        outputs: &[(&str, DeviceTensor)],
    ) -> Result<Encoded, RunError> {
        self.first(inputs)?.encode(encoder, inputs, outputs).await
    }

    /// The session of the first plan that accepts these inputs.
    fn first(&mut self, inputs: &[(&str, Value)]) -> Result<&mut Session, RunError> {
        let plan = self.select(inputs)?;
        Ok(&mut self.plans[plan].1)
    }
}
