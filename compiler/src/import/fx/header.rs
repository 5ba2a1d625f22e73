//! The versions of an archive and of its program's schema, which are checked before the program is read.

use super::archive::{Archive, Layout};
use super::lists;
use super::messages::{ExportedProgram, SchemaVersion};
use crate::{Diagnostic, Errors, json_in_words};

/// The major versions of the schema that can be read.
const SCHEMAS: std::ops::RangeInclusive<i64> = 7..=8;

/// The part of a program that is read first, as the rest has another form in other versions.
#[derive(serde::Deserialize)]
pub struct About {
    /// The version of the schema.
    pub schema_version: SchemaVersion,
    /// The version of torch that wrote it.
    #[serde(default)]
    pub torch_version: Option<String>,
}

fn not_read(e: serde_json::Error) -> Diagnostic {
    let e = json_in_words(&e);
    Diagnostic::model(format!("the program of the archive is not understood: {e}"))
        .help("it is what torch.export.save writes as models/model.json; save it again")
}

/// Reads the versions of an archive's program.
pub fn about(archive: &Archive<'_>) -> Result<About, Errors> {
    Ok(serde_json::from_slice(archive.program()?.bytes()).map_err(not_read)?)
}

/// Reads the program of an archive.
pub fn read(archive: &Archive<'_>) -> Result<ExportedProgram, Errors> {
    let mut errors = vec![];
    let text =
        |name: &str| archive.text(name).ok().map(|p| String::from_utf8_lossy(p.bytes()).trim().to_owned());
    if archive.layout == Layout::Folders {
        if let Some(v) = text("archive_version").filter(|v| v != "0") {
            let d =
                Diagnostic::unsupported(format!("the archive is of version {v}; version 0 is understood"));
            errors.push(d.help("save it with an older version of torch"));
        }
        if let Some(order) = text("byteorder").filter(|o| o != "little") {
            let d = Diagnostic::unsupported(format!("the archive's numbers are {order}-endian"));
            errors.push(d.help("save it on a little-endian machine"));
        }
    }
    let json = archive.program()?;
    let header: About = serde_json::from_slice(json.bytes()).map_err(not_read)?;
    let major = header.schema_version.major;
    if !SCHEMAS.contains(&major) {
        let d = Diagnostic::unsupported(format!(
            "the program is of schema version {major}; {} to {} are understood",
            SCHEMAS.start(),
            SCHEMAS.end()
        ));
        errors.push(d.help("export it with a torch from 2.5 to 2.15"));
    }
    if !errors.is_empty() {
        return Err(Errors(errors));
    }
    let mut program = archive.json(&json, not_read)?;
    lists::expand(&mut program);
    Ok(program)
}
