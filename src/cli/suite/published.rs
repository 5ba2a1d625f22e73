//! Figures that others published, beside the rows of the suite that measure the same.

use serde::Deserialize;
use wgfc::Error;
use wgfc::suite::Unit;

/// A figure that was published.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The publication.
    pub source: String,
    pub device: String,
    pub what: String,
    pub unit: Unit,
    /// A value, or the ends of a range.
    pub values: Vec<f64>,
    /// The row of the suite that measures it.
    pub row: Option<String>,
    /// The reason why no row does.
    pub missing: Option<String>,
}

/// All figures.
pub fn all() -> Result<Vec<Published>, Error> {
    serde_json::from_str(include_str!("published.json"))
        .map_err(|e| Error::Internal(format!("the published figures: {e}")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_figure_has_a_row_or_a_reason() {
        for p in super::all().unwrap() {
            assert!(p.row.is_some() != p.missing.is_some() && !p.values.is_empty(), "{}", p.what);
        }
    }
}
