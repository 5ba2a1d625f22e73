//! What is known of a device: its limits, which decide what can run on it, and its speeds, which decide what is chosen.

use serde::{Deserialize, Serialize};

/// What the target device offers. The default is what every WebGPU device has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Storage buffers one kernel may bind.
    pub max_storage_buffers: u32,
    /// Invocations of a workgroup.
    pub max_invocations: u32,
    /// Bytes of workgroup memory.
    pub max_workgroup_bytes: u32,
    /// Bytes one binding may have.
    pub max_binding_bytes: u64,
    /// Workgroups along one dimension of a dispatch.
    pub max_workgroups: u32,
    /// Alignment of a binding's offset, in bytes.
    pub storage_alignment: u32,
    /// Whether kernels may use `f16` (`shader-f16`); without it f16 tensors are unpacked by hand.
    pub f16: bool,
    /// Invocations of every subgroup (`subgroups`), a power of two; `None` where there are none or they differ.
    #[serde(default)]
    pub subgroup: Option<u32>,
    /// Whether subgroups multiply matrices of 16 × 16 f16 into f32 (`wgpu-cooperative-matrix`, not in browsers).
    #[serde(default)]
    pub cooperative_matrix: bool,
    /// Iterations of a loop in a kernel, where the driver ends it after so many.
    #[serde(default)]
    pub loop_iterations: Option<u32>,
    /// Bytes a second that a streaming kernel moves.
    pub bandwidth: f64,
    /// Floating-point operations a second.
    pub flops: f64,
    /// Seconds that one more dispatch in a pass costs.
    pub dispatch_cost: f64,
}

impl Default for DeviceProfile {
    fn default() -> DeviceProfile {
        DeviceProfile {
            max_storage_buffers: 8,
            max_invocations: 256,
            max_workgroup_bytes: 16384,
            max_binding_bytes: 128 << 20,
            max_workgroups: 65535,
            storage_alignment: 256,
            f16: false,
            subgroup: None,
            cooperative_matrix: false,
            loop_iterations: None,
            bandwidth: 100e9,
            flops: 2e12,
            dispatch_cost: 10e-6,
        }
    }
}
