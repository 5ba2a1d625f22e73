//! The cost of `--tap`, `--add` and `--replace`.

use super::terminal::Terminal;
use wgfc::compiler::device::Speeds;
use wgfc::inspect::{Roof, Summary, bytes_text, table};
use wgfc::ir::Program;
use wgfc::{ModelFile, Options};

/// The figures of a program, compared with those of the same model without taps and extra inputs.
pub struct Cost {
    /// The dimensions to which the figures apply.
    at: String,
    without: Figures,
    /// The figures with the extra inputs left out.
    left_out: Figures,
    /// The figures with extra inputs as large as the tensors; equal to `left_out` if there are none.
    given: Figures,
    /// The optional inputs, with their types.
    inputs: Vec<(String, String)>,
}

/// The dispatches of a run, and the least bytes that they read and write.
#[derive(Clone, Copy)]
struct Figures {
    dispatches: u64,
    bytes: u64,
}

/// The cost of the options' taps and extra inputs. Symbols have the values in `dims`, else the expected ones. `None` if
/// there are neither taps nor extra inputs, or a size is not valid.
pub fn cost(
    file: &ModelFile,
    options: &Options,
    program: &Program,
    dims: &[(String, i64)],
    t: &Terminal,
) -> Option<Cost> {
    if options.taps.is_empty() && options.added.is_empty() && options.replaced.is_empty() {
        return None;
    }
    let plain = Options { taps: vec![], added: vec![], replaced: vec![], ..options.clone() };
    let without = {
        let _progress = t.spinner("compiling without what looks inside".into());
        file.compile(&plain).ok()?
    };
    let mut given = dims.to_vec();
    for s in without.symbols.iter().filter(|s| !dims.iter().any(|d| d.0 == **s)) {
        given.push((s.clone(), options.expect.symbol(s)));
    }
    let figures = |p: &Program, dims: &[(String, i64)]| {
        let s = Summary::new(p, dims, Roof::of(&Speeds::PORTABLE, None, None)).ok()?;
        Some((Figures { dispatches: s.runs(), bytes: s.bytes }, s.at()))
    };
    let (without, at) = figures(&without, &given)?;
    let (left_out, _) = figures(program, &given)?;
    let mut whole = given.clone();
    let mut inputs = vec![];
    for p in wgfc::value_info::program_values(&program.inputs).into_iter().filter(|p| p.broadcast.is_some()) {
        let extents = p.shape_at(&given.iter().cloned().collect()).ok()?;
        let own = p.shape.iter().zip(extents).map(|(s, n)| (s.to_string(), i64::try_from(n).unwrap_or(0)));
        whole.extend(own);
        inputs.push((p.name.clone(), p.type_text()));
    }
    let (given, _) = figures(program, &whole)?;
    Some(Cost { at, without, left_out, given, inputs })
}

impl Cost {
    /// The cost as text.
    pub fn text(&self) -> String {
        let more = |n: u64, of: u64| if n >= of { format!("+{}", n - of) } else { format!("-{}", of - n) };
        let more_bytes = |n: u64, of: u64| match n >= of {
            true => format!("+{}", bytes_text(n - of)),
            false => format!("-{}", bytes_text(of - n)),
        };
        let row = |name: &str, f: Figures| {
            let w = self.without;
            vec![
                name.to_owned(),
                f.dispatches.to_string(),
                more(f.dispatches, w.dispatches),
                bytes_text(f.bytes),
                more_bytes(f.bytes, w.bytes),
            ]
        };
        let mut rows =
            vec![["looking inside", "dispatches", "more", "bytes", "more"].map(String::from).to_vec()];
        rows.push(row("without", self.without));
        if self.inputs.is_empty() {
            rows.push(row("with taps", self.left_out));
        } else {
            rows.push(row("with, nothing given", self.left_out));
            rows.push(row("with, whole tensors given", self.given));
        }
        let mut out =
            format!("{}  bytes are the least{}\n", table(&rows, &[false, true, true, true, true]), self.at);
        for (name, ty) in &self.inputs {
            out += &format!("  input `{name}`: {ty}\n");
        }
        out
    }

    /// The cost as JSON.
    pub fn json(&self) -> serde_json::Value {
        let of = |f: Figures| serde_json::json!({ "dispatches": f.dispatches, "bytes": f.bytes });
        serde_json::json!({
            "without": of(self.without),
            "nothing_given": of(self.left_out),
            "whole_tensors_given": of(self.given),
            "inputs": self.inputs.iter().map(|i| &i.0).collect::<Vec<_>>(),
        })
    }
}
