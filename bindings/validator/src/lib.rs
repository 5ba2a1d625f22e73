//! Validation of compiled kernels by naga, for web pages.
//!
//! It is a module of its own, as naga would make the compiler's larger by a sixth. `web/src/compiler/worker.ts` loads it where a
//! page asks for validation, writes what the compiler answered into memory that [`allocate`] gave, and calls [`validate`]. It has no imports.

#[path = "../../shared/memory.rs"]
mod memory;

pub use memory::allocate;
use serde::Deserialize;
use std::collections::BTreeMap;
use wgfc_program::check::check;
use wgfc_program::program::Kernel;

/// The part of the compiler's answer that is about kernels.
#[derive(Deserialize)]
struct Compiled {
    plan: Plans,
    /// Texts by name.
    kernels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Plans {
    plans: Vec<Plan>,
}

#[derive(Deserialize)]
struct Plan {
    kernels: Vec<Kernel>,
}

/// Validates an answer's kernels. Returns a message for each fault.
fn problems(answer: &[u8]) -> String {
    let Compiled { plan, kernels: mut texts } = match serde_json::from_slice(answer) {
        Ok(c) => c,
        Err(e) => return format!("the compiler's answer is not what it should be: {e}"),
    };
    // Plans may share kernels; each kernel is validated once.
    let kernels: BTreeMap<String, Kernel> =
        plan.plans.into_iter().flat_map(|p| p.kernels).map(|k| (k.name.clone(), k)).collect();
    let judged = kernels.into_iter().filter_map(|(name, mut kernel)| {
        kernel.wgsl = texts.remove(&name).unwrap_or_default();
        check(&kernel).err().map(|e| format!("kernel {name}: {e}"))
    });
    judged.collect::<Vec<_>>().join("\n")
}

/// Validates the kernels of an answer of the compiler. The result points to two numbers of 32 bits, the address and length of a text that says
/// what is wrong; both stay until the instance of the module ends.
///
/// # Safety
/// `at` came from [`allocate`] with this `len`, and nothing uses it any more.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn validate(at: *mut u8, len: usize) -> *const [usize; 2] {
    // SAFETY: as the caller promises.
    let answer = unsafe { memory::taken(at, len) };
    let text = problems(&answer).leak();
    Box::leak(Box::new([text.as_ptr() as usize, text.len()]))
}
