//! The limits of a device that runs programs.

use crate::bundle::{INVOCATIONS, Needs, STORAGE_BUFFERS, WORKGROUP_BYTES, WORKGROUP_SIZE};
use crate::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};
use std::collections::BTreeMap;

/// The limits of a device that a compiler needs, and the features that kernels may use.
///
/// ```
/// use wgfc_program::DeviceLimits;
/// use wgfc_program::bundle::{INVOCATIONS, Needs};
/// let device = DeviceLimits { invocations: 256, f16: false, ..DeviceLimits::UNLIMITED };
/// let needs = Needs { limits: [(INVOCATIONS.to_owned(), 512)].into(), ..Needs::default() };
/// assert_eq!(device.lacks(&needs).len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The number of storage buffers that a kernel may bind.
    pub storage_buffers: u32,
    /// The size in bytes of one storage binding.
    pub binding_bytes: u64,
    /// The size in bytes of one buffer.
    pub buffer_bytes: u64,
    /// The size in bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// The number of invocations of one workgroup.
    pub invocations: u32,
    /// Largest extent of a workgroup, per dimension.
    pub workgroup_size: [u32; 3],
    /// The number of workgroups of one dispatch, per dimension.
    pub workgroups: u32,
    /// Whether kernels may use f16 (`shader-f16`).
    pub f16: bool,
    /// The smallest and the largest subgroup size; `None` if kernels may not use subgroups.
    pub subgroup: Option<(u32, u32)>,
    /// Whether subgroups can multiply 16 × 16 matrices of f16 and accumulate in f32 (`wgpu-cooperative-matrix`).
    pub cooperative_matrix: bool,
    /// The number of loop iterations of an invocation after which the driver ends its loops; `None` if it does not.
    pub loop_iterations: Option<u32>,
    /// Whether timestamps can be taken around a pass.
    pub timestamps: bool,
    /// Whether timestamps can be taken between the dispatches of one pass.
    pub timestamps_in_pass: bool,
}

impl DeviceLimits {
    /// Limits that no program exceeds.
    pub const UNLIMITED: DeviceLimits = DeviceLimits {
        storage_buffers: u32::MAX,
        binding_bytes: u64::MAX,
        buffer_bytes: u64::MAX,
        workgroup_bytes: u32::MAX,
        invocations: u32::MAX,
        workgroup_size: [u32::MAX; 3],
        workgroups: u32::MAX,
        f16: true,
        subgroup: None,
        cooperative_matrix: true,
        loop_iterations: None,
        timestamps: true,
        timestamps_in_pass: true,
    };

    /// Descriptions of the features and limits that a plan needs and the device lacks; empty if the plan can run.
    pub fn lacks(&self, needs: &Needs) -> Vec<String> {
        let mut lacking = vec![];
        for f in &needs.features {
            let there = match f.as_str() {
                "shader-f16" => self.f16,
                "subgroups" => self.subgroup.is_some(),
                WGPU_MATRICES | CHROMIUM_MATRICES => self.cooperative_matrix,
                _ => false,
            };
            if !there {
                lacking.push(format!("the feature `{f}`"));
            }
        }
        let [x, y, z] = WORKGROUP_SIZE;
        let [wx, wy, wz] = self.workgroup_size;
        let have: BTreeMap<&str, u32> = [
            (STORAGE_BUFFERS, self.storage_buffers),
            (WORKGROUP_BYTES, self.workgroup_bytes),
            (INVOCATIONS, self.invocations),
            (x, wx),
            (y, wy),
            (z, wz),
        ]
        .into();
        for (name, need) in &needs.limits {
            match have.get(name.as_str()) {
                Some(have) if u64::from(*have) >= *need => {}
                Some(have) => lacking.push(format!("`{name}` of {need}, which is {have}")),
                None => lacking.push(format!("`{name}` of {need}, a limit that is not known here")),
            }
        }
        if let Some(sizes) = &needs.subgroup_sizes
            && !self.subgroup.is_some_and(|(least, most)| least == most && sizes.contains(&least))
        {
            let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
            lacking.push(match sizes.is_empty() {
                true => "subgroups of several sizes at once".to_owned(),
                false => format!("subgroups of {}", sizes.join(" or ")),
            });
        }
        lacking
    }
}
