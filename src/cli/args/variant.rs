//! The differences between plans.

use super::parse_dim;
use wgfc::Error;
use wgfc::compiler::DeviceProfile;
use wgfc::ir::wgsl::CHROMIUM_MATRICES;

/// The target to compile for, without such a device at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TargetArg {
    /// Browsers: the limits that every WebGPU device has, and no optional features but those that `--features` names
    Web,
}

/// A feature of devices that kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureArg {
    /// `shader-f16`.
    F16,
    /// `subgroups`, each of this size.
    Subgroups(u32),
    /// `chromium-experimental-subgroup-matrix`, with the f16 and the subgroups that its matrices need.
    SubgroupMatrix,
}

impl FeatureArg {
    /// Lets kernels use it.
    pub fn add(self, profile: &mut DeviceProfile) {
        match self {
            FeatureArg::F16 => profile.f16 = true,
            FeatureArg::Subgroups(size) => profile.subgroup = Some(size),
            FeatureArg::SubgroupMatrix => {
                (profile.f16, profile.subgroup_matrix) = (true, true);
                profile.subgroup.get_or_insert(32);
            }
        }
    }
}

/// `f16`, `subgroups`, `subgroups=32` or `subgroup-matrix`.
pub fn parse_feature(s: &str) -> Result<FeatureArg, String> {
    match s.split_once('=').unwrap_or((s, "32")) {
        ("f16" | "shader-f16", "32") if !s.contains('=') => Ok(FeatureArg::F16),
        ("subgroup-matrix" | CHROMIUM_MATRICES, "32") if !s.contains('=') => Ok(FeatureArg::SubgroupMatrix),
        ("subgroups", size) => {
            let size = size.parse::<u32>().ok().filter(|n| n.is_power_of_two() && *n <= 128);
            size.map(FeatureArg::Subgroups)
                .ok_or_else(|| format!("`{s}`: subgroups have 1, 2, 4, … or 128 invocations"))
        }
        _ => Err(format!(
            "`{s}` is not a feature: there are f16, subgroups, subgroups=SIZE and subgroup-matrix"
        )),
    }
}

/// One of several plans.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantArg {
    /// Its name.
    pub name: String,
    /// Dimensions that it fixes.
    pub dims: Vec<(String, i64)>,
    /// Features that it may use.
    pub features: Vec<FeatureArg>,
}

/// `NAME[:WHAT,…]`, where `WHAT` fixes a dimension or is a feature.
pub fn parse_variant(s: &str) -> Result<VariantArg, String> {
    let (name, rest) = s.split_once(':').unwrap_or((s, ""));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("`{name}` is not a valid name: it may have letters, digits, `_`, `-` and `.`"));
    }
    let mut v = VariantArg { name: name.to_owned(), dims: vec![], features: vec![] };
    for item in rest.split(',').filter(|i| !i.is_empty()) {
        // A dimension of a feature's name is fixed by --dim.
        match item.split_once('=') {
            Some((name, _)) if parse_feature(name).is_err() => v.dims.push(parse_dim(item)?),
            _ => v.features.push(parse_feature(item)?),
        }
    }
    Ok(v)
}

/// Refuses two plans of one name.
pub fn distinct(variants: &[VariantArg]) -> Result<(), Error> {
    for (i, v) in variants.iter().enumerate() {
        if variants[..i].iter().any(|o| o.name == v.name) {
            return Err(Error::usage(format!("two plans are called `{}`", v.name), "give each another name"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_read() {
        let v = parse_variant("decode:seq=1,f16,subgroups=16,batch=2").unwrap();
        assert_eq!((v.name.as_str(), v.dims.len()), ("decode", 2));
        assert_eq!(v.features, [FeatureArg::F16, FeatureArg::Subgroups(16)]);
        assert_eq!(parse_variant("any").unwrap().dims, []);
        let mut profile = DeviceProfile::default();
        parse_feature("subgroup-matrix").unwrap().add(&mut profile);
        assert!(profile.has_matrix_units() && profile.subgroup == Some(32));
        for bad in ["", ":seq=1", "a b", "a:seq=x", "a:f64", "a:subgroups=3", "a:f16=1", "a:f16=32", "../x"] {
            assert!(parse_variant(bad).is_err(), "{bad}");
        }
    }
}
