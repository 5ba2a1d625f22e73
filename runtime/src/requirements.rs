//! The features and limits that a device must have for a program, to be known before the device is made.

use crate::bind;
use crate::error::RunError;
use std::collections::BTreeMap;
use wgfc_program::bundle::{INVOCATIONS, Needs, STORAGE_BUFFERS, WORKGROUP_BYTES, WORKGROUP_SIZE};
use wgfc_program::program::BufferKind;
use wgfc_program::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};
use wgfc_program::{DeviceLimits, Program};

/// The features and limits that a device must have for a program.
///
/// ```no_run
/// # fn device(program: &wgfc_program::Program, adapter: &wgpu::Adapter) -> Result<(), wgfc_runtime::RunError> {
/// use wgfc_runtime::{Requirements, wgpu};
/// let needs = Requirements::of(program);
/// needs.check(adapter.features(), &adapter.limits())?;
/// let descriptor = wgpu::DeviceDescriptor {
///     required_features: needs.features, // and yours
///     required_limits: needs.limits(wgpu::Limits::default()),
///     ..Default::default()
/// };
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    /// The features that kernels use. `EXPERIMENTAL_COOPERATIVE_MATRIX` among them needs `experimental_features` of the descriptor, too.
    pub features: wgpu::Features,
    needs: Needs,
    /// The sizes in bytes of the largest buffer and of the largest binding.
    buffer_bytes: u64,
    binding_bytes: u64,
    /// The largest workgroup count of any dispatch in any dimension.
    workgroups: u32,
}

/// The wgpu feature for a name in a plan.
fn feature(name: &str) -> Option<wgpu::Features> {
    match name {
        "shader-f16" => Some(wgpu::Features::SHADER_F16),
        "subgroups" => Some(wgpu::Features::SUBGROUP),
        // Kernels of Chrome's extension are translated.
        WGPU_MATRICES | CHROMIUM_MATRICES => Some(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
        _ => None,
    }
}

impl Requirements {
    /// The requirements of a program for any sizes of its inputs. Only buffers and dispatches of constant size count.
    pub fn of(program: &Program) -> Requirements {
        let number = |d: &wgfc_program::Dim| d.as_const().and_then(|n| u64::try_from(n).ok());
        let mut of = Requirements::of_kernels(program);
        for b in &program.buffers {
            let elements = number(&b.elements).and_then(|n| usize::try_from(n).ok());
            let bytes = elements.map_or(0, |n| wgfc_program::program::Buffer::byte_size(b.dtype, n));
            of.binding_bytes = of.binding_bytes.max(bytes);
        }
        of.buffer_bytes = of.binding_bytes;
        let counts = program.dispatches.iter().flat_map(|d| &d.workgroups).filter_map(number);
        of.workgroups = counts.max().map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
        of
    }

    /// The requirements of runs in which the symbols have these values, by name. Symbols are the symbolic sizes of inputs, and
    /// the lengths and capacities of states.
    ///
    /// # Errors
    /// [`RunError::Inputs`] for a symbol without a value, and [`RunError::Constraint`] for values that violate a constraint.
    ///
    /// ```
    /// use wgfc_runtime::{Requirements, testing, wgpu};
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// let program = testing::doubling();
    /// // A gigabyte of numbers needs larger buffers than every device has.
    /// let needs = Requirements::with_sizes(&program, &[("n".to_owned(), 1 << 28)].into())?;
    /// let limits = wgpu::Limits::downlevel_defaults();
    /// assert!(!needs.missing(wgpu::Features::empty(), &limits).is_empty());
    /// assert!(Requirements::of(&program).check(wgpu::Features::empty(), &limits).is_ok());
    /// # Ok(()) }
    /// ```
    pub fn with_sizes(program: &Program, sizes: &BTreeMap<String, i64>) -> Result<Requirements, RunError> {
        let computed = |s: &str| program.computed.iter().any(|c| c.symbol == s);
        let unknown: Vec<_> =
            program.symbols.iter().filter(|s| !sizes.contains_key(*s) && !computed(s)).collect();
        if !unknown.is_empty() {
            let bad = |s: &&String| crate::BadInput {
                name: (*s).clone(),
                message: "this size has no value".into(),
            };
            return Err(RunError::Inputs(unknown.iter().map(bad).collect()));
        }
        let values = program.symbols.iter().map(|s| sizes.get(s).copied().unwrap_or(0)).collect();
        let bound = bind::bind(program, values, &DeviceLimits::UNLIMITED)?;
        let mut of = Requirements::of(program);
        of.binding_bytes = bound.memory.bytes.iter().copied().fold(of.binding_bytes, u64::max);
        let alone = |k: &BufferKind| !matches!(k, BufferKind::Arena { .. });
        let own =
            program.buffers.iter().zip(&bound.memory.bytes).filter(|(b, _)| alone(&b.kind)).map(|(_, n)| *n);
        of.buffer_bytes = own.chain(bound.memory.arenas.iter().copied()).fold(of.buffer_bytes, u64::max);
        of.workgroups = bound.workgroups.iter().flatten().copied().fold(of.workgroups, u32::max);
        Ok(of)
    }

    fn of_kernels(program: &Program) -> Requirements {
        let needs = Needs::of(program);
        let known = needs.features.iter().filter_map(|f| feature(f));
        let mut features = known.fold(wgpu::Features::empty(), |all, f| all | f);
        if needs.subgroup_sizes.is_some() {
            features |= wgpu::Features::SUBGROUP;
        }
        Requirements { features, needs, ..Requirements::default() }
    }

    /// The limits `base`, raised as far as the program needs, for `request_device`.
    pub fn limits(&self, base: wgpu::Limits) -> wgpu::Limits {
        let need = |name: &str| {
            let n = self.needs.limits.get(name).copied().unwrap_or(0);
            u32::try_from(n).unwrap_or(u32::MAX)
        };
        let [x, y, z] = WORKGROUP_SIZE.map(need);
        let mut l = base;
        let raise = |limit: &mut u32, to: u32| *limit = to.max(*limit);
        raise(&mut l.max_storage_buffers_per_shader_stage, need(STORAGE_BUFFERS));
        raise(&mut l.max_compute_workgroup_storage_size, need(WORKGROUP_BYTES));
        raise(&mut l.max_compute_invocations_per_workgroup, need(INVOCATIONS));
        raise(&mut l.max_compute_workgroup_size_x, x);
        raise(&mut l.max_compute_workgroup_size_y, y);
        raise(&mut l.max_compute_workgroup_size_z, z);
        raise(&mut l.max_compute_workgroups_per_dimension, self.workgroups);
        // The sizes of a run are in one uniform.
        raise(&mut l.max_uniform_buffers_per_shader_stage, 1);
        l.max_storage_buffer_binding_size = self.binding_bytes.max(l.max_storage_buffer_binding_size);
        l.max_buffer_size = self.buffer_bytes.max(l.max_buffer_size);
        l
    }

    /// Descriptions of the features and limits that the program needs beyond these, which may be those of an adapter or of a
    /// device. They do not include the subgroup size, which some kernels require: making a session of a program with such kernels
    /// may still fail.
    pub fn missing(&self, features: wgpu::Features, limits: &wgpu::Limits) -> Vec<String> {
        let mut missing = vec![];
        for name in &self.needs.features {
            match feature(name) {
                Some(f) if features.contains(f) => {}
                Some(f) => missing.push(format!("the feature `{name}` (wgpu::Features::{})", flag(f))),
                None => missing.push(format!("the feature `{name}`, which is not known here")),
            }
        }
        let named = self.needs.features.iter().any(|f| f == "subgroups");
        if self.needs.subgroup_sizes.is_some() && !named && !features.contains(wgpu::Features::SUBGROUP) {
            missing.push("the feature `subgroups` (wgpu::Features::SUBGROUP)".to_owned());
        }
        // The requested limits equal `limits` except for those that the program raises.
        self.limits(limits.clone()).check_limits_with_fail_fn(limits, false, |name, need, have| {
            missing.push(format!("the limit `{name}` of {need}, which is {have}"));
        });
        missing
    }

    /// Checks that these features and limits are enough.
    ///
    /// # Errors
    /// [`RunError::Lacking`] with all features and limits that are [missing](Requirements::missing).
    pub fn check(&self, features: wgpu::Features, limits: &wgpu::Limits) -> Result<(), RunError> {
        let missing = self.missing(features, limits);
        if missing.is_empty() { Ok(()) } else { Err(RunError::Lacking(missing)) }
    }
}

fn flag(f: wgpu::Features) -> String {
    f.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" | ")
}
