//! The meaning of each operator: a file for each family reads the arguments, and calls [`lower`](crate::lower).
//! A file is one line in the list below.

mod refused;
#[cfg(test)]
pub(in crate::import) mod supported;

pub use random::draws;
pub use refused::why;

use super::op::OpDef;
use super::schema;
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

/// Every operator.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    TABLE.iter().copied().flatten()
}

/// The targets of every operator.
pub fn targets() -> impl Iterator<Item = (String, &'static OpDef)> {
    all().flat_map(|d| d.targets().map(move |t| (t, d)))
}

/// How a target is lowered.
#[derive(Clone, Copy)]
pub struct Found {
    /// As which operator.
    pub def: &'static OpDef,
    /// Whether its result is written over the argument that its declaration says.
    pub in_place: bool,
    /// Whether its result takes the name of that argument, as another view of the same memory: `t_`.
    pub turns: bool,
}

impl Found {
    fn plain(def: &'static OpDef) -> Found {
        Found { def, in_place: false, turns: false }
    }

    /// As the operator of another target, written in place.
    fn in_place((target, def): (String, &'static OpDef)) -> Found {
        let views = schema::find(&target).and_then(|s| s.aliased(0).map(|(_, a)| !a.written));
        let turns = views.unwrap_or(false);
        Found { def, in_place: !turns, turns }
    }
}

/// The operator of a target: `aten.add_.Tensor` is `aten.add.Tensor`, written in place, so is `aten.__iadd__.Tensor` of
/// `aten.__add__.Tensor`, and `aten.view_copy.default` is `aten.view.default`.
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

/// The operator of a name that takes the same arguments as a target: `aten.transpose.int` for `aten.transpose_.default`.
fn of_other_overload(space: &str, name: &str, target: &str) -> Option<(String, &'static OpDef)> {
    let taken = |target: &str| -> Option<Vec<(&str, &str)>> {
        Some(schema::find(target)?.arguments.iter().map(|a| (a.name, a.kind)).collect())
    };
    let (wanted, start) = (taken(target)?, format!("{space}.{name}."));
    targets().find(|(t, _)| t.starts_with(&start) && taken(t).as_ref() == Some(&wanted))
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
        for (target, _) in targets() {
            // Some are declared in place alone: `normal_`.
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
        let kind = |target: &str| find(target).map(|f| (f.def.target, f.in_place, f.turns));
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
