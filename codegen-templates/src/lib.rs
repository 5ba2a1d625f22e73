//! The WGSL templates of wgfc and a typed parameter struct for each.
//!
//! A template is real WGSL with slots. It is rendered only from its struct; a slot that the struct
//! does not fill is an error, not an empty string. The scalar functions that kernels call are in
//! the [`library`].

pub mod attention;
pub mod cooperative;
pub mod library;
pub mod looped;
pub mod map;
pub mod matmul;
pub mod prefix_scan;
pub mod row;
pub mod sort;
pub mod spread_loop;
pub mod staged_loop;
pub mod thin;
pub mod untiled;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use serde::Serialize;
use std::sync::LazyLock;

/// The parameters of one template.
pub trait Template: Serialize {
    /// The template's name in [`SOURCES`].
    const NAME: &'static str;
}

/// Every template by name.
pub const SOURCES: &[(&str, &str)] = &[
    ("attention.wgsl", include_str!("../templates/attention.wgsl.jinja")),
    ("attention_cooperative.wgsl", include_str!("../templates/attention_cooperative.wgsl.jinja")),
    ("attention_decode.wgsl", include_str!("../templates/attention_decode.wgsl.jinja")),
    ("attention_streamed.wgsl", include_str!("../templates/attention_streamed.wgsl.jinja")),
    ("map.wgsl", include_str!("../templates/map.wgsl.jinja")),
    ("map_words.wgsl", include_str!("../templates/map_words.wgsl.jinja")),
    ("map_unrolled.wgsl", include_str!("../templates/map_unrolled.wgsl.jinja")),
    ("map_tiled.wgsl", include_str!("../templates/map_tiled.wgsl.jinja")),
    ("matmul.wgsl", include_str!("../templates/matmul.wgsl.jinja")),
    ("matmul_block.wgsl", include_str!("../templates/matmul_block.wgsl.jinja")),
    ("matmul_block_vectors.wgsl", include_str!("../templates/matmul_block_vectors.wgsl.jinja")),
    ("matmul_cooperative.wgsl", include_str!("../templates/matmul_cooperative.wgsl.jinja")),
    ("matmul_serial.wgsl", include_str!("../templates/matmul_serial.wgsl.jinja")),
    ("matmul_thin.wgsl", include_str!("../templates/matmul_thin.wgsl.jinja")),
    ("matmul_window.wgsl", include_str!("../templates/matmul_window.wgsl.jinja")),
    ("row.wgsl", include_str!("../templates/row.wgsl.jinja")),
    ("loop.wgsl", include_str!("../templates/loop.wgsl.jinja")),
    ("prefix_scan.wgsl", include_str!("../templates/prefix_scan.wgsl.jinja")),
    ("prefix_scan_shared.wgsl", include_str!("../templates/prefix_scan_shared.wgsl.jinja")),
    ("sort_block.wgsl", include_str!("../templates/sort_block.wgsl.jinja")),
    ("sort_path.wgsl", include_str!("../templates/sort_path.wgsl.jinja")),
    ("sort_select.wgsl", include_str!("../templates/sort_select.wgsl.jinja")),
    ("sort_merge.wgsl", include_str!("../templates/sort_merge.wgsl.jinja")),
    ("spread_loop.wgsl", include_str!("../templates/spread_loop.wgsl.jinja")),
    ("staged_loop.wgsl", include_str!("../templates/staged_loop.wgsl.jinja")),
];

static ENGINE: LazyLock<Result<Environment<'static>, String>> = LazyLock::new(|| {
    let mut engine = Environment::new();
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_syntax(SyntaxConfig::builder().keep_trailing_newline(true).build().map_err(describe)?);
    engine.add_filter("trim_end", |text: &str| text.trim_end().to_owned());
    engine.add_filter("length", |items: Vec<Value>| items.len());
    engine.add_filter("join", |items: Vec<String>, between: &str| items.join(between));
    engine.add_function("range", |end: u32| (0..end).map(Value::from).collect::<Vec<Value>>());
    for (name, source) in SOURCES {
        engine.add_template(name, source).map_err(describe)?;
    }
    Ok(engine)
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
    let template = engine.get_template(T::NAME).map_err(|e| fail(describe(e)))?;
    template.render(Serde(parameters)).map_err(|e| fail(describe(e)))
}

/// An error with its causes.
fn describe(e: minijinja::Error) -> String {
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
