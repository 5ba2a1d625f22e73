//! What each operator means: a file for each family reads the arguments, and calls [`lower`](crate::lower).
//! A file is one line in the list below.

mod refused;
#[cfg(test)]
pub(in crate::import) mod supported;

pub use random::draws;
pub use refused::why;

use super::op::OpDef;
use std::collections::HashMap;
use std::sync::OnceLock;

/// The files of operators, and the table of what they provide.
macro_rules! operators {
    ($($file:ident,)*) => {
        $(mod $file;)*
        const TABLE: &[&[OpDef]] = &[$($file::OPS),*];
    };
}

operators! {
    activation,
    attention,
    backward,
    binary,
    complex,
    composed,
    control,
    conv,
    filled,
    fourier,
    grouped,
    index,
    linalg,
    linear,
    loss,
    margins,
    matrices,
    matrix_norm,
    memory,
    norm,
    order,
    pad,
    pool,
    random,
    recurrent,
    reduce,
    resample,
    scan,
    search,
    selected,
    special,
    strided,
    unary,
    views,
}

/// Every operator.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    TABLE.iter().copied().flatten()
}

/// How a target is lowered.
#[derive(Clone, Copy)]
pub struct Found {
    /// As which operator.
    pub def: &'static OpDef,
    /// Whether its result is written over the argument that its declaration says.
    pub in_place: bool,
}

/// The operator of a target: `aten.add_.Tensor` is `aten.add.Tensor`, written in place, and `aten.view_copy.default` is
/// `aten.view.default`.
pub fn find(target: &str) -> Option<Found> {
    static INDEX: OnceLock<HashMap<&str, &OpDef>> = OnceLock::new();
    let index = INDEX.get_or_init(|| all().map(|d| (d.target, d)).collect());
    if let Some(def) = index.get(target) {
        return Some(Found { def, in_place: false });
    }
    let mut parts = target.splitn(3, '.');
    let (space, name, overload) = (parts.next()?, parts.next()?, parts.next()?);
    let base = |end: &str| {
        let name = name.strip_suffix(end).filter(|n| !n.is_empty() && !n.ends_with('_'))?;
        index.get(format!("{space}.{name}.{overload}").as_str()).copied()
    };
    match (base("_"), base("_copy")) {
        (Some(def), _) => Some(Found { def, in_place: true }),
        (None, Some(def)) => Some(Found { def, in_place: false }),
        _ => None,
    }
}

/// Operators whose indices torch wants inside their axes.
const INDEXING: [&str; 15] = [
    "embedding",
    "gather",
    "index",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_reduce",
    "index_select",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "select",
    "take",
    "take_along_dim",
];

/// Whether torch wants an operator's indices inside their axes.
pub fn wants_indices_inside(target: &str) -> bool {
    let name = target.strip_prefix("aten.").and_then(|t| t.split('.').next()).unwrap_or_default();
    INDEXING.contains(&name.strip_suffix('_').unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operator_is_defined_twice_and_all_are_declared() {
        let mut seen = std::collections::BTreeSet::new();
        for d in all() {
            assert!(seen.insert(d.target), "{} is defined twice", d.target);
            // Some are declared in place alone: `normal_`.
            let (name, overload) = d.target.rsplit_once('.').unwrap_or_default();
            let in_place = format!("{name}_.{overload}");
            let declared = [d.target, &in_place].iter().any(|t| super::super::schema::find(t).is_some());
            assert!(declared || !d.target.starts_with("aten."), "{} is not declared", d.target);
        }
        assert!(seen.len() > 700, "{}", seen.len());
    }
}
