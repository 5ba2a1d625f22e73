//! Numbers of dispatches that the cases of one operator take, and the table of them in `docs/dispatches.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use wgfc_selftest::family;

/// The largest number of dispatches allowed for an operator.
const MOST: usize = 4;

/// Operators that may take more dispatches.
const LONGER: &[&str] = &[
    // A chain of steps, each of which reads the result of the previous one.
    "Det",
    // A loop of Jacobi rotations, column norms, a sort, the columns in sorted order, and reflections for
    // columns of zero norm; also operators composed of these.
    "aten._linalg_svd.default",
    "aten.linalg_cond.default",
    "aten.linalg_matrix_rank.atol_rtol_tensor",
    "aten.linalg_matrix_sqrth.default",
    "aten.linalg_pinv.atol_rtol_tensor",
    "aten.linalg_polar.default",
    "aten.linalg_svd.default",
    "aten.linalg_svdvals.default",
    "aten.pinverse.default",
    "aten.svd.default",
    // The norm, the sum and the squarings.
    "aten.linalg_matrix_exp.default",
    // The products and the loop of each direction, and the concatenation of the results.
    "GRU",
    "LSTM",
    "RNN",
    "com.microsoft.DynamicQuantizeLSTM",
    // A sort, runs of equal elements, and four results.
    "Unique",
    // Boxes are selected one after another and then ordered.
    "NonMaxSuppression",
    // Four results: keys and values appended to the past, scores, and the product; also the detection of
    // fully masked rows.
    "Attention",
    // Rotary embedding and two appends, then attention, then two results cut from caches of several lengths.
    "com.microsoft.GroupQueryAttention",
    // The bin of each sample along each of several axes.
    "aten._histogramdd_from_bin_tensors.default",
    "aten.histogramdd.TensorList_bins",
    "aten.histogramdd.default",
    // The range, the edges, the bins and the counts.
    "aten.histc.default",
    "aten.histogram.bin_ct",
    // Two sorts for 64-bit elements, each over keys and in a number of parts not known beforehand.
    "aten.kthvalue.default",
    "aten.median.dim",
    "aten.quantile.scalar",
    "aten.topk.default",
    // A sort, the beginnings of runs, their lengths, and the longest one.
    "aten.mode.default",
    // Cases with five results, each of which is a copy.
    "aten.atleast_1d.Sequence",
    "aten.atleast_2d.Sequence",
    "aten.atleast_3d.Sequence",
    "aten.view.default",
    // The result and two running statistics; one of the two also returns two statistics of the batch.
    "aten.instance_norm.default",
    "aten._batch_norm_with_update_functional.default",
    // The positions of true elements along two axes, then a scatter.
    "aten.index_put.default",
    // Indices and weights of each axis come first, because the sum that reads them has 8 storage buffers.
    "DeformConv",
    "RoiAlign",
    "aten.grid_sampler_3d.default",
];

/// The largest numbers of dispatches and kernels over the cases of an operator.
#[derive(Clone, Copy, Default)]
struct Most {
    dispatches: usize,
    kernels: usize,
}

/// Takes the operators, dispatches and kernels of cases. Returns the operators that exceed their limit in
/// cases of one operator, and under `UPDATE_EXPECT` writes the suite's table.
pub fn check<'a>(suite: &str, cases: impl Iterator<Item = (&'a str, usize, usize)>) -> Vec<String> {
    let mut most: BTreeMap<&str, Most> = BTreeMap::new();
    for (operator, dispatches, kernels) in cases.filter(|c| !c.0.contains(',')) {
        let m = most.entry(operator).or_default();
        m.dispatches = m.dispatches.max(dispatches);
        m.kernels = m.kernels.max(kernels);
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() && std::env::var_os("WGFC_CASES").is_none() {
        write(suite, &most);
    }
    most.iter()
        .filter(|(name, m)| m.dispatches > MOST && !LONGER.contains(name))
        .map(|(name, m)| format!("{name} ({})", m.dispatches))
        .collect()
}

/// Writes the suite's rows by family of operators, between the suite's two markers.
fn write(suite: &str, most: &BTreeMap<&str, Most>) {
    static WRITING: Mutex<()> = Mutex::new(());
    let _one = WRITING.lock();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/dispatches.md");
    let text = std::fs::read_to_string(&file).expect("docs/dispatches.md");
    let (open, close) = (format!("<!-- dispatches of {suite} -->\n"), "<!-- end -->");
    let Some((before, rest)) = text.split_once(&open) else { return };
    let Some((_, after)) = rest.split_once(close) else { return };
    let table = rows(most);
    std::fs::write(&file, format!("{before}{open}{table}{close}{after}")).expect("docs/dispatches.md");
}

fn rows(most: &BTreeMap<&str, Most>) -> String {
    let mut families: BTreeMap<&str, Vec<(&str, Most)>> = BTreeMap::new();
    for (name, m) in most {
        families.entry(family(name)).or_default().push((name, *m));
    }
    let mut text = String::from(
        "| family | operators | 0 or 1 | 2 | 3 | 4 | more: dispatches, kernels |\n|---|--:|--:|---|---|---|---|\n",
    );
    for (family, operators) in families {
        let few = operators.iter().filter(|(_, m)| m.dispatches < 2).count();
        let _ = write!(text, "| {family} | {} | {few} |", operators.len());
        for n in 2..=MOST {
            let names: Vec<&str> =
                operators.iter().filter(|(_, m)| m.dispatches == n).map(|(name, _)| short(name)).collect();
            let _ = write!(text, " {} |", names.join(", "));
        }
        let more: Vec<String> = operators
            .iter()
            .filter(|(_, m)| m.dispatches > MOST)
            .map(|(name, m)| format!("{}: {}, {}", short(name), m.dispatches, m.kernels))
            .collect();
        let _ = writeln!(text, " {} |", more.join("; "));
    }
    text
}

/// The name of an operator without its domain.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
