//! The operators: a file for each family reads the arguments, and calls [`lower`](crate::lower). Each file is one line in the list below.

mod refused;
#[cfg(test)]
pub(in crate::import) mod supported;

pub use random::draws;
pub use refused::why;

use super::op::OpDef;
use super::schema;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Declares the files of operators, and the table of their definitions.
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
    gradient,
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
    vision,
}

/// All operators.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    TABLE.iter().copied().flatten()
}

/// All targets with their operators.
pub fn targets() -> impl Iterator<Item = (String, &'static OpDef)> {
    all().flat_map(|d| d.targets().map(move |t| (t, d)))
}

/// The lowering of a target.
#[derive(Clone, Copy)]
pub struct Found {
    /// The operator that lowers it.
    pub def: &'static OpDef,
    /// Whether the result is written to the argument that the schema declares.
    pub in_place: bool,
    /// Whether that argument is not written but becomes another view of its memory, as for `t_`.
    pub rebinds: bool,
}

impl Found {
    fn plain(def: &'static OpDef) -> Found {
        Found { def, in_place: false, rebinds: false }
    }

    /// The in-place form of another target's operator.
    fn in_place((target, def): (String, &'static OpDef)) -> Found {
        let views = schema::find(&target).and_then(|s| s.aliased(0).map(|(_, a)| !a.written));
        let rebinds = views.unwrap_or(false);
        Found { def, in_place: !rebinds, rebinds }
    }
}

/// The lowering of a target: `aten.add_.Tensor` is `aten.add.Tensor` in place, `aten.__iadd__.Tensor` is `aten.__add__.Tensor` in place,
/// and `aten.view_copy.default` is `aten.view.default`.
pub fn find(target: &str) -> Option<Found> {
    static INDEX: OnceLock<HashMap<String, &OpDef>> = OnceLock::new();
    let index = INDEX.get_or_init(|| targets().collect());
    if let Some(def) = index.get(target) {
        return Some(Found::plain(def));
    }
    let mut parts = target.splitn(3, '.');
    let (space, name, overload) = (parts.next()?, parts.next()?, parts.next()?);
    let of = |name: &str| {
        let target = format!("{space}.{name}.{overload}");
        index.get(&target).map(|d| (target, *d))
    };
    let base = |end: &str| name.strip_suffix(end).filter(|n| !n.is_empty() && !n.ends_with('_'));
    if let Some(inner) = name.strip_prefix("__i").filter(|n| n.ends_with("__")) {
        return of(&format!("__{inner}")).map(Found::in_place);
    }
    if let Some(name) = base("_") {
        return of(name).or_else(|| of_other_overload(space, name, target)).map(Found::in_place);
    }
    base("_copy").and_then(of).map(|(_, def)| Found::plain(def))
}

/// The operator of another overload of `name` with the same arguments: `aten.transpose.int` for `aten.transpose_.default`.
fn of_other_overload(space: &str, name: &str, target: &str) -> Option<(String, &'static OpDef)> {
    let taken = |target: &str| -> Option<Vec<(&str, &str)>> {
        Some(schema::find(target)?.arguments.iter().map(|a| (a.name, a.kind)).collect())
    };
    let (wanted, start) = (taken(target)?, format!("{space}.{name}."));
    targets().find(|(t, _)| t.starts_with(&start) && taken(t).as_ref() == Some(&wanted))
}

/// Operators for which torch requires indices within bounds.
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

/// Whether torch requires an operator's indices to be within bounds.
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
        for (target, _) in targets() {
            // Some operators have a schema only for the in-place form: `normal_`.
            let (name, overload) = target.rsplit_once('.').unwrap_or_default();
            let in_place = format!("{name}_.{overload}");
            let declared = [&target, &in_place].iter().any(|t| schema::find(t).is_some());
            assert!(declared || !target.starts_with("aten."), "{target} is not declared");
            assert!(seen.insert(target.clone()), "{target} is defined twice");
        }
        assert!(seen.len() > 900, "{}", seen.len());
    }

    #[test]
    fn operators_in_place_are_found_by_what_they_write() {
        let kind = |target: &str| find(target).map(|f| (f.def.target, f.in_place, f.rebinds));
        assert_eq!(kind("aten.add_.Tensor"), Some(("aten.add.Scalar|Tensor", true, false)));
        assert_eq!(kind("aten.__iand__.Scalar"), Some(("aten.__and__.Scalar|Tensor", true, false)));
        assert_eq!(
            kind("aten.floor_divide_.Tensor"),
            Some(("aten.floor_divide.Scalar|default", true, false))
        );
        assert_eq!(
            kind("aten.floor_divide_.Scalar"),
            Some(("aten.floor_divide.Scalar|default", true, false))
        );
        assert_eq!(kind("aten.t_.default"), Some(("aten.t.default", false, true)));
        assert_eq!(kind("aten.transpose_.default"), Some(("aten.transpose.int", false, true)));
        assert_eq!(kind("aten.squeeze_.dim"), Some(("aten.squeeze.default|dim|dims", false, true)));
        assert_eq!(kind("aten.dropout_.default"), Some(("aten.dropout.default", true, false)));
        assert_eq!(kind("aten.t_copy.default"), Some(("aten.t.default", false, false)));
        assert_eq!(kind("aten.__init__.default"), None);
        assert_eq!(kind("aten._.default"), None);
    }
}
