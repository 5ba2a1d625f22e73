//! Names of arguments and results: paths to the leaves of a pytree, whose structure an archive holds as JSON text.

use super::guards::Path;
use super::messages::CallSignature;
use serde_json::Value as Json;

/// The maximum nesting depth of a structure, and the maximum number of leaves.
const MOST: (usize, usize) = (64, 1 << 16);

/// The paths of the tensors of `forward`'s arguments, in order.
pub fn arguments(call: &CallSignature) -> Option<Vec<Path>> {
    let spec = read(&call.in_spec)?;
    let children = spec.get("children_spec")?.as_array()?;
    let [positional, named] = &children[..] else { return None };
    let mut out = vec![];
    let names = call.forward_arg_names.as_deref().unwrap_or_default();
    for (i, child) in positional.get("children_spec")?.as_array()?.iter().enumerate() {
        let name = names.get(i).cloned().unwrap_or_else(|| format!("arg{i}"));
        leaves(child, &mut vec![name], &mut out)?;
    }
    leaves(named, &mut vec![], &mut out)?;
    Some(out)
}

/// The paths of the results of `forward`, in order; the path of a single result is empty.
pub fn results(call: &CallSignature) -> Option<Vec<Path>> {
    let mut out = vec![];
    leaves(&read(&call.out_spec)?, &mut vec![], &mut out)?;
    Some(out)
}

/// Parses `[1, {…}]`, a version and the structure, and returns the structure.
fn read(text: &str) -> Option<Json> {
    match serde_json::from_str(text).ok()? {
        Json::Array(mut parts) if parts.len() == 2 => parts.pop(),
        _ => None,
    }
}

fn leaves(spec: &Json, path: &mut Path, out: &mut Vec<Path>) -> Option<()> {
    if path.len() > MOST.0 || out.len() > MOST.1 {
        return None;
    }
    let children = spec.get("children_spec")?.as_array()?;
    if spec.get("type")?.is_null() {
        out.push(path.clone());
        return Some(());
    }
    let keys = keys(spec.get("context"));
    for (i, child) in children.iter().enumerate() {
        path.push(keys.get(i).cloned().unwrap_or_else(|| i.to_string()));
        leaves(child, path, out)?;
        path.pop();
    }
    Some(())
}

/// The keys of a dictionary or of an object with named fields.
fn keys(context: Option<&Json>) -> Vec<String> {
    let text = context.and_then(Json::as_str).unwrap_or_default();
    let Ok(Json::Array(parts)) = serde_json::from_str(text) else { return vec![] };
    let texts =
        |parts: &[Json]| parts.iter().map(|k| k.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    // A default dictionary has its factory before its list of keys.
    let nested = parts.iter().find_map(Json::as_array);
    texts(&parts).or_else(|| texts(nested?)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_have_paths() {
        let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
        let list =
            format!(r#"{{"type": "builtins.list", "context": "null", "children_spec": [{leaf}, {leaf}]}}"#);
        let dict = |keys: &str, c: &str| {
            format!(r#"{{"type": "builtins.dict", "context": "{keys}", "children_spec": [{c}]}}"#)
        };
        let args =
            format!(r#"{{"type": "builtins.tuple", "context": "null", "children_spec": [{leaf}, {list}]}}"#);
        let kwargs = dict(r#"[\"mask\"]"#, leaf);
        let in_spec = format!(
            r#"[1, {{"type": "builtins.tuple", "context": "null", "children_spec": [{args}, {kwargs}]}}]"#
        );
        let forward_arg_names = Some(vec!["ids".to_owned(), "past".into()]);
        let out_spec = format!("[1, {}]", dict(r#"[\"logits\"]"#, leaf));
        let call = CallSignature { in_spec, out_spec, forward_arg_names };
        let joined =
            |paths: Option<Vec<Path>>| paths.unwrap().iter().map(|p| p.join(".")).collect::<Vec<_>>();
        assert_eq!(joined(arguments(&call)), ["ids", "past.0", "past.1", "mask"]);
        assert_eq!(joined(results(&call)), ["logits"]);
    }
}
