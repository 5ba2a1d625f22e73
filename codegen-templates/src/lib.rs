//! The WGSL templates of wgfc and a typed parameter struct for each.
//!
//! A template is real WGSL with slots. It is rendered only from its struct; a slot that the struct
//! does not fill is an error, not an empty string. The scalar functions that kernels call are in
//! the [`library`].
//!
//! This crate is a part of the compiler. Its items are internal and may change in every version, so they have no examples but this
//! one: programs use the crate `wgfc`.
//!
//! ```
//! use wgfc_codegen_templates::loops::{Kernel, Statement};
//! use wgfc_codegen_templates::render;
//! let text = |text: &str| Statement::Text { text: text.to_owned() };
//! let running_sum = Kernel {
//!     preamble: "@group(0) @binding(0) var<storage, read_write> x: array<f32>;".to_owned(),
//!     shared: vec![],
//!     threads: 1,
//!     list: vec![
//!         text("    var sum = 0.0;"),
//!         Statement::For {
//!             var: "i".to_owned(),
//!             extent: "100".to_owned(),
//!             body: vec![text("        sum += x[i];\n        x[i] = sum;")],
//!         },
//!     ],
//! };
//! assert!(render(&running_sum)?.contains("@workgroup_size(1)"));
//! # Ok::<(), wgfc_codegen_templates::RenderError>(())
//! ```

pub mod attention;
pub mod cooperative;
pub mod integer_tiles;
pub mod library;
pub mod loops;
pub mod matmul;
pub mod prefix_scan;
pub mod row;
pub mod sort;
pub mod spread_loop;
pub mod staged_loop;
pub mod thin;
pub mod untiled;

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use tera::{Context, Tera};

/// The parameters of one template.
pub trait Template: Serialize {
    /// The template's name in [`SOURCES`].
    const NAME: &'static str;
}

/// Every template by name, and `parts` that templates include or whose components they call.
pub const SOURCES: &[(&str, &str)] = &[
    ("attention.wgsl", include_str!("../templates/attention.wgsl.tera")),
    ("attention_cooperative.wgsl", include_str!("../templates/attention_cooperative.wgsl.tera")),
    ("attention_decode.wgsl", include_str!("../templates/attention_decode.wgsl.tera")),
    ("attention_streamed.wgsl", include_str!("../templates/attention_streamed.wgsl.tera")),
    ("matmul.wgsl", include_str!("../templates/matmul.wgsl.tera")),
    ("matmul_block.wgsl", include_str!("../templates/matmul_block.wgsl.tera")),
    ("matmul_block_vectors.wgsl", include_str!("../templates/matmul_block_vectors.wgsl.tera")),
    ("matmul_cooperative.wgsl", include_str!("../templates/matmul_cooperative.wgsl.tera")),
    ("matmul_integers.wgsl", include_str!("../templates/matmul_integers.wgsl.tera")),
    ("matmul_thin.wgsl", include_str!("../templates/matmul_thin.wgsl.tera")),
    ("matmul_window.wgsl", include_str!("../templates/matmul_window.wgsl.tera")),
    ("row.wgsl", include_str!("../templates/row.wgsl.tera")),
    ("loops.wgsl", include_str!("../templates/loops.wgsl.tera")),
    ("prefix_scan_shared.wgsl", include_str!("../templates/prefix_scan_shared.wgsl.tera")),
    ("sort_block.wgsl", include_str!("../templates/sort_block.wgsl.tera")),
    ("sort_path.wgsl", include_str!("../templates/sort_path.wgsl.tera")),
    ("sort_select.wgsl", include_str!("../templates/sort_select.wgsl.tera")),
    ("sort_merge.wgsl", include_str!("../templates/sort_merge.wgsl.tera")),
    ("spread_loop.wgsl", include_str!("../templates/spread_loop.wgsl.tera")),
    ("staged_loop.wgsl", include_str!("../templates/staged_loop.wgsl.tera")),
    ("parts/attention_block.wgsl", include_str!("../templates/parts/attention_block.wgsl.tera")),
    ("parts/attention_part.wgsl", include_str!("../templates/parts/attention_part.wgsl.tera")),
    ("parts/attention_results.wgsl", include_str!("../templates/parts/attention_results.wgsl.tera")),
    ("parts/matrices.wgsl", include_str!("../templates/parts/matrices.wgsl.tera")),
    ("parts/sort.wgsl", include_str!("../templates/parts/sort.wgsl.tera")),
    ("parts/statements.wgsl", include_str!("../templates/parts/statements.wgsl.tera")),
];

/// The parsed templates, and of each the names of the slots that it has.
struct Engine {
    tera: Tera,
    slots: BTreeMap<&'static str, Vec<String>>,
}

static ENGINE: LazyLock<Result<Engine, String>> = LazyLock::new(|| {
    let mut tera = Tera::new();
    tera.add_raw_templates(SOURCES.iter().copied()).map_err(describe)?;
    let mut slots = BTreeMap::new();
    for (name, _) in SOURCES {
        let all = tera.get_template_variables(name).map_err(describe)?;
        slots.insert(*name, all.into_iter().map(str::to_owned).collect());
    }
    Ok(Engine { tera, slots })
});

/// Why a template could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("template {name}: {reason}")]
pub struct RenderError {
    /// The template's name in [`SOURCES`].
    pub name: &'static str,
    /// The engine's message.
    pub reason: String,
}

/// Fills a template.
pub fn render<T: Template>(parameters: &T) -> Result<String, RenderError> {
    let fail = |reason| RenderError { name: T::NAME, reason };
    let engine = ENGINE.as_ref().map_err(|e| fail(e.clone()))?;
    let context = Context::from_serialize(parameters).map_err(|e| fail(describe(e)))?;
    // A condition takes a variable that is not there as false.
    if let Some(slot) = engine.slots.get(T::NAME).into_iter().flatten().find(|s| !context.contains_key(s)) {
        return Err(fail(format!("no field for the slot `{slot}`")));
    }
    engine.tera.render(T::NAME, &context).map_err(|e| fail(describe(e)))
}

/// An error with its causes.
fn describe(e: tera::Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(&e);
    while let Some(c) = cause {
        text.push_str(": ");
        text.push_str(&c.to_string());
        cause = c.source();
    }
    text
}

/// How a kernel numbers the invocations of its workgroup, as text: `local`.
#[derive(Clone, Debug, Serialize)]
pub struct Local {
    /// Parameters of the entry point, indented by 4.
    parameters: &'static str,
    /// A statement, indented by 4.
    statement: String,
}

impl Local {
    /// For subgroups of `subgroup` invocations, which then have consecutive numbers; 1 is without them.
    pub fn new(subgroup: u32) -> Local {
        if subgroup > 1 {
            Local {
                parameters: "    @builtin(subgroup_id) subgroup: u32,\n    @builtin(subgroup_invocation_id) invocation: u32,\n",
                statement: format!("    let local = subgroup * {subgroup}u + invocation;\n"),
            }
        } else {
            Local {
                parameters: "    @builtin(local_invocation_index) local: u32,\n",
                statement: String::new(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ENGINE, SOURCES, Template, render};
    use serde::Serialize;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_template_is_in_the_list_and_parses() {
        let engine = ENGINE.as_ref().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(engine.slots.len(), SOURCES.len());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates");
        let files =
            [(folder.clone(), ""), (folder.join("parts"), "parts/")].into_iter().flat_map(|(at, prefix)| {
                let entries =
                    std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
                entries.filter_map(move |f| Some(format!("{prefix}{}", f.strip_suffix(".tera")?)))
            });
        let listed = SOURCES.iter().map(|(name, _)| (*name).to_owned());
        assert_eq!(files.collect::<BTreeSet<String>>(), listed.collect());
    }

    #[test]
    fn a_slot_without_a_field_is_an_error() {
        /// `shared` and `list` are read by a loop and a component, the others are written.
        #[derive(Serialize)]
        struct Some {
            preamble: &'static str,
            threads: u32,
        }
        impl Template for Some {
            const NAME: &'static str = "loops.wgsl";
        }
        let some = Some { preamble: "", threads: 64 };
        let reason = render(&some).unwrap_err().reason;
        assert!(reason.starts_with("no field for the slot"), "{reason}");
    }

    /// The fields of elements of lists are not known before a template is filled.
    #[test]
    fn names_behind_dots_are_fields() {
        fn sources(folder: &Path, all: &mut String) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    sources(&path, all);
                } else {
                    all.push_str(&std::fs::read_to_string(path).unwrap());
                }
            }
        }
        let mut rust = String::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut rust);
        let field = |line: &str| {
            let line = line.trim_start();
            Some(line.strip_prefix("pub ").unwrap_or(line).split_once(':')?.0.to_owned())
        };
        // The name of an enum's variant is a field of its own.
        let tag = |line: &str| Some(line.split_once("tag = \"")?.1.split_once('"')?.0.to_owned());
        let fields: BTreeSet<String> = rust.lines().filter_map(|l| tag(l).or_else(|| field(l))).collect();
        for (name, source) in SOURCES {
            // A tag begins with `{{` or `{%`: the parts between braces that hold one begin with `%`, or follow an empty part.
            let parts: Vec<&str> = source.split('{').collect();
            let tags = parts
                .windows(2)
                .filter(|p| p[1].starts_with('%') || p[0].is_empty() && !p[1].starts_with('#'));
            for tag in tags.map(|p| p[1]) {
                let code = tag.split('}').next().unwrap_or_default();
                // Text between quotes, which every second part is, has no names.
                for part in code.split('"').step_by(2) {
                    for (at, _) in part.match_indices('.') {
                        let word: String =
                            part[at + 1..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                        let known = fields.contains(&word) || part[..at].ends_with("loop");
                        assert!(known, "{name}: `{word}` in `{code}` is no field");
                    }
                }
            }
        }
    }
}
