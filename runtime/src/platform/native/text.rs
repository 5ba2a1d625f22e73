//! Checks that the WGSL texts of kernels agree with the plan.

use crate::kernel;
use naga::{AddressSpace, TypeInner};
use wgfc_program::program::Kernel;

/// The limit in bytes of an invocation's private and local variables, far above the needs of any emitted kernel.
const PRIVATE_BYTES: u64 = 64 << 10;
/// The alignment in bytes of matrices in workgroup memory.
const MATRIX_ALIGNMENT: u64 = 16;

pub(crate) fn check_text(k: &Kernel) -> Vec<String> {
    let mut wrong = vec![];
    let text = kernel::text(k);
    let module = match naga::front::wgsl::parse_str(&text) {
        Ok(m) => m,
        Err(e) => return vec![format!("its text is not WGSL: {}", e.message())],
    };
    let entry = match module.entry_points.as_slice() {
        [e] if e.name == "main" && e.stage == naga::ShaderStage::Compute => e,
        _ => return vec!["its text has not one entry point `main`".to_owned()],
    };
    let size = entry.workgroup_size;
    if size != k.workgroup_size {
        wrong.push(format!("its text says workgroup size {size:?}, the plan {:?}", k.workgroup_size));
    }
    let bytes = |ty| u64::from(module.types[ty].inner.size(module.to_ctx()));
    let globals = |space| {
        let of = module.global_variables.iter().filter(move |(_, v)| v.space == space);
        of.map(|(_, v)| bytes(v.ty)).fold(0, u64::saturating_add)
    };
    let shared = globals(AddressSpace::WorkGroup);
    if shared > u64::from(k.workgroup_bytes) {
        wrong.push(format!(
            "its text takes {shared} bytes of workgroup memory, the plan says {}",
            k.workgroup_bytes
        ));
    }
    // Matrices are loaded from addresses that are multiples of 16 bytes, and drivers lay variables out without padding.
    let matrices = module.types.iter().any(|(_, t)| matches!(t.inner, TypeInner::CooperativeMatrix { .. }));
    let variables = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    for bytes in
        variables.map(|(_, v)| bytes(v.ty)).filter(|b| matrices && !b.is_multiple_of(MATRIX_ALIGNMENT))
    {
        wrong.push(format!(
            "a variable in workgroup memory has {bytes} bytes, beside matrices they must be multiples of {MATRIX_ALIGNMENT}"
        ));
    }
    let functions = module.functions.iter().map(|(_, f)| f).chain([&entry.function]);
    let locals = functions.flat_map(|f| f.local_variables.iter()).map(|(_, v)| bytes(v.ty));
    let own = locals.fold(globals(AddressSpace::Private), u64::saturating_add);
    if own > PRIVATE_BYTES {
        wrong
            .push(format!("each invocation takes {own} bytes of memory of its own, at most {PRIVATE_BYTES}"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use crate::check::check;
    use crate::measure::kernel;
    use wgfc_program::Program;

    /// The errors of a program with this kernel, whose plan says 8 invocations and 64 bytes of workgroup memory.
    fn said(wgsl: &str) -> String {
        let mut k = kernel("k", wgsl, 8, vec![]);
        k.workgroup_bytes = 64;
        check(&Program { kernels: vec![k], ..Program::default() }).join("; ")
    }

    #[test]
    fn texts_say_of_themselves_what_the_plan_does() {
        let main = "@compute @workgroup_size(8) fn main() {}";
        let matrix = "enable wgpu_cooperative_matrix; \
                      @compute @workgroup_size(8) fn main() { let m = coop_mat16x16<f32, C>(); }";
        for (text, wrong) in [
            (main.to_owned(), ""),
            ("const N = 4u * 2u; @workgroup_size(N, 1) @compute fn main() {}".to_owned(), ""),
            (format!("var<workgroup> w: array<u32, 16>; {main}"), ""),
            (format!("var<private> p: array<u32, 64>; {main}"), ""),
            (" ".to_owned(), "has no text"),
            ("fn main() {".to_owned(), "is not WGSL"),
            ("fn main() {}".to_owned(), "entry point"),
            (format!("{main} @compute @workgroup_size(8) fn other() {{}}"), "entry point"),
            (
                "@compute @workgroup_size(4, 2) fn main() {}".to_owned(),
                "workgroup size [4, 2, 1], the plan [8, 1, 1]",
            ),
            (
                "// @workgroup_size(8)\n@compute @workgroup_size(9) fn main() {}".to_owned(),
                "workgroup size [9, 1, 1]",
            ),
            (format!("var<workgroup> w: array<u32, 17>; {main}"), "68 bytes of workgroup memory"),
            (format!("{matrix} var<workgroup> w: array<u32, 4>;"), ""),
            (format!("{matrix} var<workgroup> w: u32;"), "has 4 bytes, beside matrices"),
            (format!("var<private> p: array<u32, 10000000>; {main}"), "40000000 bytes of memory of its own"),
            (
                "@compute @workgroup_size(8) fn main() { var p: array<vec4<f32>, 100000>; }".to_owned(),
                "1600000 bytes",
            ),
            (
                "fn f() { var p: array<f32, 100000>; } @compute @workgroup_size(8) fn main() { f(); }"
                    .to_owned(),
                "400000",
            ),
        ] {
            let said = said(&text);
            assert!(said.contains(wrong) && said.is_empty() == wrong.is_empty(), "{text}: {said}");
        }
    }
}
