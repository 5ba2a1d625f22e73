//! The check after emission: naga must accept a kernel's text with the declared bindings and features.

use crate::program::{Access, Kernel};
use crate::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Handle, Module, ScalarKind, StorageAccess, Type, TypeInner};

/// The required alignment in bytes of matrices that are loaded or stored, from Vulkan's rules for
/// `OpCooperativeMatrixLoadKHR`.
const MATRIX_ALIGNMENT: u32 = 16;

/// Parses and validates a kernel with only the capabilities that it declares.
///
/// # Errors
/// If naga rejects the text, or it contradicts the declarations: a message with the text.
///
/// ```
/// use wgfc_program::check::check;
/// use wgfc_program::program::{Access, Kernel};
/// let mut kernel = Kernel {
///     wgsl: "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
///            @compute @workgroup_size(64) fn main() { y[0] = 1.0; }".to_owned(),
///     workgroup_size: [64, 1, 1],
///     bindings: vec![Access::ReadWrite],
/// #     name: "one".to_owned(),
/// #     family: "map".to_owned(),
/// #     features: vec![],
/// #     uses_dims: false,
/// #     workgroup_bytes: 0,
/// #     subgroup_size: None,
///     // …
/// };
/// assert_eq!(check(&kernel), Ok(()));
/// kernel.workgroup_size = [32, 1, 1];
/// assert!(check(&kernel).unwrap_err().contains("workgroup size [64, 1, 1], not [32, 1, 1]"));
/// ```
pub fn check(k: &Kernel) -> Result<(), String> {
    let fail = |what: String| format!("the {} kernel is not what it should be: {what}\n{}", k.family, k.wgsl);
    let text = crate::wgsl::for_naga(&k.wgsl);
    let module = naga::front::wgsl::parse_str(&text).map_err(|e| fail(e.emit_to_string(&text)))?;
    // The packing functions of f16 in 32-bit words are part of WGSL without any feature.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    for f in &k.features {
        capabilities |= match f.as_str() {
            "shader-f16" => Capabilities::SHADER_FLOAT16,
            "subgroups" => Capabilities::SUBGROUP,
            WGPU_MATRICES | CHROMIUM_MATRICES => Capabilities::COOPERATIVE_MATRIX,
            f => return Err(fail(format!("unknown feature `{f}`"))),
        };
    }
    Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|e| fail(e.emit_to_string(&text)))?;

    let entry = match module.entry_points.as_slice() {
        [e] if e.name == "main" => e,
        _ => return Err(fail("there is not exactly one entry point `main`".into())),
    };
    if entry.workgroup_size != k.workgroup_size {
        return Err(fail(format!("workgroup size {:?}, not {:?}", entry.workgroup_size, k.workgroup_size)));
    }
    let matrices = k.features.iter().any(|f| f == WGPU_MATRICES || f == CHROMIUM_MATRICES);
    let mut storage = vec![None; k.bindings.len()];
    let mut dims = false;
    let mut workgroup = 0;
    for (_, v) in module.global_variables.iter() {
        match (v.space, &v.binding) {
            (AddressSpace::Storage { access }, Some(b)) if b.group == 0 => {
                let access =
                    if access.contains(StorageAccess::STORE) { Access::ReadWrite } else { Access::Read };
                match storage.get_mut(b.binding as usize) {
                    Some(slot @ None) => *slot = Some(access),
                    _ => return Err(fail(format!("binding {} is unexpected", b.binding))),
                }
            }
            (AddressSpace::Uniform, Some(b)) if b.group == 0 && b.binding as usize == k.bindings.len() => {
                dims = true;
            }
            // Some drivers lose bools in workgroup memory.
            (AddressSpace::WorkGroup, None) if has_bool(&module, v.ty) => {
                return Err(fail(format!("variable {:?} keeps bools in workgroup memory", v.name)));
            }
            (AddressSpace::WorkGroup, None) => {
                let size = module.types[v.ty].inner.size(module.to_ctx());
                // Matrices are loaded from multiples of 16 bytes, and drivers place variables one after the other.
                if matrices && !size.is_multiple_of(MATRIX_ALIGNMENT) {
                    let what = format!("variable {:?} has {size} bytes of workgroup memory", v.name);
                    return Err(fail(format!("{what}, no multiple of {MATRIX_ALIGNMENT}, beside matrices")));
                }
                workgroup += size;
            }
            (AddressSpace::Private, None) => {}
            _ => return Err(fail(format!("variable {:?} is unexpected", v.name))),
        }
    }
    if storage.iter().zip(&k.bindings).any(|(a, b)| *a != Some(*b)) {
        return Err(fail(format!("bindings {storage:?}, not {:?}", k.bindings)));
    }
    if dims != k.uses_dims {
        return Err(fail(format!("the Dims uniform is {}declared", if dims { "" } else { "not " })));
    }
    if workgroup > k.workgroup_bytes {
        return Err(fail(format!("{workgroup} bytes of workgroup memory, not {}", k.workgroup_bytes)));
    }
    Ok(())
}

/// Whether a value of the type contains a bool.
fn has_bool(module: &Module, ty: Handle<Type>) -> bool {
    match &module.types[ty].inner {
        TypeInner::Array { base, .. } | TypeInner::BindingArray { base, .. } => has_bool(module, *base),
        TypeInner::Struct { members, .. } => members.iter().any(|m| has_bool(module, m.ty)),
        inner => inner.scalar_kind() == Some(ScalarKind::Bool),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message about a kernel with one variable of this type in workgroup memory.
    fn said(ty: &str, features: &[&str]) -> String {
        let wgsl = format!(
            "struct Pair {{ at: i32, found: bool }}
            var<workgroup> kept: {ty};
            var<private> own: array<bool, 2>;
            @compute @workgroup_size(1) fn main() {{}}"
        );
        let kernel = Kernel {
            name: "row".into(),
            family: "row".into(),
            wgsl,
            workgroup_size: [1; 3],
            bindings: vec![],
            uses_dims: false,
            workgroup_bytes: 64,
            features: features.iter().map(|f| (*f).into()).collect(),
            subgroup_size: None,
        };
        check(&kernel).err().unwrap_or_default()
    }

    #[test]
    fn variables_beside_matrices_are_multiples_of_what_these_are_aligned_to() {
        for (ty, refused) in
            [("atomic<u32>", true), ("array<vec2<f32>, 3>", true), ("array<atomic<u32>, 4>", false)]
        {
            for feature in [WGPU_MATRICES, CHROMIUM_MATRICES] {
                assert_eq!(said(ty, &[feature]).contains("no multiple of 16"), refused, "{ty}");
            }
            assert_eq!(said(ty, &[]), "", "{ty}");
        }
    }

    #[test]
    fn bools_are_kept_out_of_workgroup_memory() {
        for (ty, refused) in [
            ("bool", true),
            ("array<bool, 4>", true),
            ("array<vec2<bool>, 4>", true),
            ("array<array<Pair, 2>, 4>", true),
            ("array<u32, 4>", false),
            ("vec4<f32>", false),
        ] {
            let said = said(ty, &[]);
            assert_eq!(said.contains("keeps bools"), refused, "{ty}: {said}");
        }
    }
}
