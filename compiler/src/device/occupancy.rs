//! The memory of a core, which decides how many workgroups are resident on it together.
//!
//! No interface to a device reports these figures and no measurement tells them: they are an H100's unless a file gives others. The
//! registers of other GPUs are as many.

use super::DeviceProfile;

/// The bytes of workgroup memory of a core: one of the sizes that an H100 can be set to, of which kernels of each kind have a share by fits
/// to times on it. Of the 256 KiB of a core, its driver gives the rest to the cache of the first level.
pub(super) fn workgroup_bytes() -> u32 {
    100 << 10
}

/// The registers of a core, by the vendor's figures.
pub(super) fn registers() -> u32 {
    64 << 10
}

/// The registers of an invocation, by the vendor's figures; one of the 256 is always 0.
pub(super) fn registers_of_invocation() -> u32 {
    256
}

/// The maximum number of invocations that are resident on a core, by the vendor's figures. With the default number of registers, those of
/// kernels that need more than 32 registers each are fewer.
const INVOCATIONS: f64 = 2048.0;

/// A kind of kernel, for which the driver chooses how much of a core's memory is workgroup memory.
///
/// The shares are fits to times on an H100: 64 KiB for products in tiles, 48 KiB for attention and for 60 products on matrix units.
/// One share for all is no substitute: of 2304 products of each type on that device, 64 KiB for all would cut up 671 in f16 otherwise, and
/// 100 KiB for all 810 in f16 and 306 in f32, which by these fits would take 1.1 (f32) and 1.5 times (f16) as long on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Products in tiles.
    Tiles,
    /// Attention, products on matrix units, and products with few rows.
    Matrices,
}

impl Kind {
    /// The share of a core's workgroup memory, in 25ths.
    const fn share(self) -> u32 {
        match self {
            Kind::Tiles => 16,
            Kind::Matrices => 12,
        }
    }
}

impl DeviceProfile {
    /// The number of workgroups that can be resident on a core by their workgroup memory, not rounded.
    pub fn resident_by_bytes(&self, kind: Kind, bytes: f64) -> f64 {
        f64::from(self.core_workgroup_bytes) * f64::from(kind.share()) / 25.0 / bytes
    }

    /// The number of workgroups that can be resident on a core by the registers of their invocations, not rounded.
    pub fn resident_by_registers(&self, threads: f64, registers: f64) -> f64 {
        (f64::from(self.core_registers) / registers).min(INVOCATIONS) / threads
    }

    /// This share of the registers of an invocation, for values that are kept in them; the others hold addresses and intermediate values.
    pub fn registers_for(&self, share: f64) -> u32 {
        (f64::from(self.invocation_registers) * share) as u32
    }

    /// The number of words that a workgroup keeps in the registers of its invocations while it runs a loop: three eighths of a core's, as
    /// the rest is needed for other values.
    pub fn kept_words(&self) -> i64 {
        i64::from(self.core_registers) * 3 / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_core_follow_from_the_profile() {
        let p = DeviceProfile::default();
        let bytes = [Kind::Tiles, Kind::Matrices].map(|k| p.resident_by_bytes(k, 1.0));
        assert_eq!(bytes, [65_536.0, 49_152.0]);
        assert_eq!([256.0, 32.0, 8.0].map(|r| p.resident_by_registers(128.0, r)), [2.0, 16.0, 16.0]);
        assert_eq!((p.registers_for(5.0 / 8.0), p.kept_words()), (160, 24 << 10));
        let small = DeviceProfile { core_workgroup_bytes: 25 << 10, invocation_registers: 128, ..p };
        assert_eq!(small.resident_by_bytes(Kind::Tiles, 8192.0), 2.0);
        assert_eq!(small.registers_for(5.0 / 8.0), 80);
    }
}
