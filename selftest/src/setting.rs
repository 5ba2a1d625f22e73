//! The setting of a case: the degree of fusion, techniques that are left out, device features that are used, and the choice
//! of schedules.

use std::collections::BTreeSet;
use std::fmt;
use wgfc_compiler::device::Speeds;
use wgfc_compiler::{DeviceProfile, Fusion, Options, Technique};
use wgfc_ir::testing::Rng;
use wgfc_runtime::DeviceLimits;

const TECHNIQUES: [Technique; 11] = [
    Technique::Approximate,
    Technique::Merge,
    Technique::Epilogues,
    Technique::WaitingScales,
    Technique::KeyParts,
    Technique::Loops,
    Technique::LoopsInInvocations,
    Technique::LoopsInWorkgroups,
    Technique::Layouts,
    Technique::Winograd,
    Technique::Sequences,
];

/// A change of the device profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Only the features and limits of every WebGPU device.
    Portable,
    /// Without subgroups.
    NoSubgroups,
    /// Without f16 in kernels.
    NoF16,
    /// Without matrix units.
    NoMatrices,
    /// At most eight storage buffers per kernel.
    FewBuffers,
    /// The most iterations of a loop.
    ShortLoops(u32),
    /// The speeds of a fast device: dispatches cost almost nothing.
    Fast,
    /// The speeds of a software adapter.
    Slow,
    /// The speeds of a fast device with long dispatches: one workgroup runs as many kernels as it can.
    Joined,
}

impl Part {
    fn apply(self, p: &mut DeviceProfile) {
        match self {
            Part::Portable => {
                *p = DeviceProfile { loop_iterations: p.loop_iterations, ..DeviceProfile::default() };
            }
            Part::NoSubgroups => p.subgroup = None,
            Part::NoF16 => (p.f16, p.cooperative_matrix) = (false, false),
            Part::NoMatrices => p.cooperative_matrix = false,
            Part::FewBuffers => p.max_storage_buffers = p.max_storage_buffers.min(8),
            Part::ShortLoops(n) => p.loop_iterations = Some(p.loop_iterations.map_or(n, |m| m.min(n))),
            Part::Fast => p.speeds = Speeds { dispatch_cost: 4e-8, ..Speeds::DISCRETE },
            Part::Slow => p.speeds = Speeds::SOFTWARE,
            Part::Joined => p.speeds = Speeds { dispatch_cost: 1e-3, ..Speeds::DISCRETE },
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Portable => f.write_str("WebGPU's least limits"),
            Part::NoSubgroups => f.write_str("no subgroups"),
            Part::NoF16 => f.write_str("no f16 in kernels"),
            Part::NoMatrices => f.write_str("no matrix units"),
            Part::FewBuffers => f.write_str("8 storage buffers"),
            Part::ShortLoops(n) => write!(f, "loops of at most {n} iterations"),
            Part::Fast => f.write_str("planned for a fast device"),
            Part::Slow => f.write_str("planned for a slow device"),
            Part::Joined => f.write_str("planned for a device with long dispatches"),
        }
    }
}

/// How a case is compiled. The default equals that of `wgfc run`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Setting {
    pub fusion: Fusion,
    pub without: BTreeSet<Technique>,
    pub parts: BTreeSet<Part>,
    /// The seed by which schedules are chosen at random; `None` for the compiler's own choice.
    pub cut: Option<u64>,
}

impl Setting {
    /// The setting of the case `seed` of `name`; it does not depend on the device. One in three is the default.
    pub fn draw(name: &str, seed: u64) -> Setting {
        let mut rng = Rng::new(super::draw::hash(name) ^ seed.wrapping_mul(0xd134_2543_de82_ef95));
        let mut s = Setting::default();
        if rng.one_in(3) {
            return s;
        }
        s.fusion = match rng.below(6) {
            0 => Fusion::None,
            1 => Fusion::Elementwise,
            _ => Fusion::Full,
        };
        let looped = name == super::sequence::LOOP;
        if s.fusion == Fusion::Full {
            let rare = if looped { 4 } else { 8 };
            s.without.extend(TECHNIQUES.into_iter().filter(|_| rng.one_in(rare)));
        }
        let parts = [Part::NoSubgroups, Part::NoF16, Part::NoMatrices, Part::FewBuffers, Part::Portable];
        s.parts.extend(parts.into_iter().filter(|_| rng.one_in(4)));
        match rng.below(6) {
            0 => drop(s.parts.insert(Part::Fast)),
            1 => drop(s.parts.insert(Part::Slow)),
            2 => drop(s.parts.insert(Part::Joined)),
            _ => {}
        }
        if looped && rng.one_in(2) {
            s.parts.insert(Part::ShortLoops([2, 3, 7][rng.below(3)]));
        }
        let cut = rng.bits() >> 32;
        s.cut = rng.one_in(2).then_some(cut);
        s
    }

    /// The compiler's options for a device.
    pub fn options(&self, limits: &DeviceLimits) -> Options {
        let mut profile = DeviceProfile::default().with_limits(limits);
        for p in &self.parts {
            p.apply(&mut profile);
        }
        Options { fusion: self.fusion, without: self.without.clone(), profile, ..Options::default() }
    }

    /// The number of differences from the default.
    fn weight(&self) -> usize {
        self.fusion as usize + self.without.len() + self.parts.len() + usize::from(self.cut.is_some())
    }

    /// The default, then this setting with one difference removed at a time.
    pub fn simpler(&self) -> Vec<Setting> {
        let mut all = vec![Setting::default()];
        if self.fusion != Fusion::None {
            all.push(Setting { fusion: Fusion::None, without: BTreeSet::new(), ..self.clone() });
        }
        if self.cut.is_some() {
            all.push(Setting { cut: None, ..self.clone() });
        }
        for p in &self.parts {
            let mut s = self.clone();
            s.parts.remove(p);
            all.push(s);
        }
        for t in &self.without {
            let mut s = self.clone();
            s.without.remove(t);
            all.push(s);
        }
        all.retain(|s| s.weight() < self.weight());
        all
    }

    /// The options of the command line for this setting, as far as there are any.
    pub fn arguments(&self) -> String {
        let mut text = String::new();
        if self.fusion != Fusion::Full {
            text += &format!(" --fusion {}", level(self.fusion));
        }
        text.extend(self.without.iter().map(|t| format!(" --without {}", technique(*t))));
        text
    }
}

fn level(f: Fusion) -> &'static str {
    match f {
        Fusion::None => "none",
        Fusion::Elementwise => "elementwise",
        Fusion::Full => "full",
    }
}

fn technique(t: Technique) -> String {
    serde_json::to_value(t).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fusion {}", level(self.fusion))?;
        for t in &self.without {
            write!(f, ", without {}", technique(*t))?;
        }
        for p in &self.parts {
            write!(f, ", {p}")?;
        }
        if let Some(seed) = self.cut {
            write!(f, ", kernels cut up at random ({seed})")?;
        }
        Ok(())
    }
}
