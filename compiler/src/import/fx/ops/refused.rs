//! Operators that are not supported, with reasons.

/// Reasons, and the operators that each applies to.
pub const REFUSED: &[(&str, &[&str])] = &[
    (
        "iterations whose number the values decide; compute it outside of the model",
        &["aten._linalg_eigvals", "aten.linalg_eig", "aten.linalg_eigvals", "aten.linalg_lstsq"],
    ),
    (
        "its pivots are of one row or of two; linalg.cholesky and linalg.lu are supported",
        &["aten.linalg_ldl_factor", "aten.linalg_ldl_factor_ex", "aten.linalg_ldl_solve"],
    ),
    (
        "the values of a tensor decide how many results there are",
        &["aten.tensor_split.tensor_indices_or_sections"],
    ),
    ("run_decompositions() writes it in others", &["aten.gradient"]),
];

/// The reason why an operator is not supported, if it is listed.
pub fn why(target: &str) -> Option<&'static str> {
    let name = target.rsplit_once('.').map_or(target, |(name, _)| name);
    let listed = |names: &[&str]| names.contains(&name) || names.contains(&target);
    REFUSED.iter().find(|(_, names)| listed(names)).map(|(why, _)| *why)
}
