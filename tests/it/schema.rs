//! The schemas of `docs`, and checks that plans and records of the suite follow them.

use serde_json::Value;
use std::path::Path;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_ir::program::Stats;

/// The first violation of a schema by a value, for the keywords that the schemas of `docs` use.
fn breaks(schema: &Value, root: &Value, v: &Value, at: &str) -> Result<(), String> {
    let fail = |what: String| Err(format!("{at}: {what}"));
    for (key, rule) in schema.as_object().ok_or("a schema is an object")? {
        let list = rule.as_array();
        let number = rule.as_u64().unwrap_or(0);
        match key.as_str() {
            "$schema" | "title" | "$defs" => {}
            "$ref" => {
                let name =
                    rule.as_str().and_then(|r| r.strip_prefix("#/$defs/")).ok_or("a local reference")?;
                breaks(&root["$defs"][name], root, v, at)?;
            }
            "oneOf" => {
                let all = || list.into_iter().flatten().map(|s| breaks(s, root, v, at));
                if all().filter(Result::is_ok).count() != 1 {
                    let each: Vec<String> = all().filter_map(Result::err).collect();
                    return fail(format!("not one of these: {}", each.join("; ")));
                }
            }
            "type" => {
                let is = match rule.as_str() {
                    Some("object") => v.is_object(),
                    Some("array") => v.is_array(),
                    Some("string") => v.is_string(),
                    Some("boolean") => v.is_boolean(),
                    Some("null") => v.is_null(),
                    Some("number") => v.is_number(),
                    Some("integer") => v.is_i64() || v.is_u64(),
                    other => return fail(format!("the type {other:?} is not known here")),
                };
                if !is {
                    return fail(format!("{v} is no {rule}"));
                }
            }
            "const" if v != rule => return fail(format!("{v} is not {rule}")),
            "enum" if !list.into_iter().flatten().any(|o| o == v) => {
                return fail(format!("{v} is none of {rule}"));
            }
            "const" | "enum" => {}
            "minimum" | "maximum" => {
                let below = v.as_i64().map_or(v.as_u64().is_none(), |n| n < number as i64);
                let above = v.as_u64().is_some_and(|n| n > number);
                if key == "minimum" && below || key == "maximum" && above {
                    return fail(format!("{v} breaks the {key} {rule}"));
                }
            }
            "minItems" | "maxItems" => {
                let n = v.as_array().map_or(number, |l| l.len() as u64);
                if key == "minItems" && n < number || key == "maxItems" && n > number {
                    return fail(format!("{n} items break {key} {rule}"));
                }
            }
            "pattern" => {
                let pattern = rule.as_str().unwrap_or_default();
                let text = v.as_str().unwrap_or_default();
                if !regex::Regex::new(pattern).unwrap().is_match(text) {
                    return fail(format!("{v} does not match {pattern}"));
                }
            }
            "items" => {
                for (i, item) in v.as_array().into_iter().flatten().enumerate() {
                    breaks(rule, root, item, &format!("{at}[{i}]"))?;
                }
            }
            "required" => {
                let lacking = list.into_iter().flatten().find(|n| v.get(n.as_str().unwrap_or("")).is_none());
                if let (Some(name), true) = (lacking, v.is_object()) {
                    return fail(format!("{name} is missing"));
                }
            }
            "properties" => {
                for (name, rule) in rule.as_object().into_iter().flatten() {
                    if let Some(inner) = v.get(name) {
                        breaks(rule, root, inner, &format!("{at}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                for (name, inner) in v.as_object().into_iter().flatten() {
                    breaks(rule, root, inner, &format!("{at}.{name}"))?;
                }
            }
            other => return fail(format!("the keyword `{other}` is not known here")),
        }
    }
    Ok(())
}

fn schema() -> Value {
    read("plan.schema.json")
}

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The first violation of a schema of `docs` by a value.
pub fn breaks_schema(name: &str, value: &Value) -> Result<(), String> {
    let schema = read(name);
    breaks(&schema, &schema, value, "value")
}

/// Checks the text of a plan against the schema.
#[track_caller]
pub fn follows_the_schema(path: &Path) -> Value {
    let text = match path.is_dir() {
        true => std::fs::read_to_string(path.join("plan.json")).unwrap(),
        false => {
            let bytes = std::fs::read(path).unwrap();
            let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            header.metadata().as_ref().unwrap()["plan.json"].clone()
        }
    };
    let (plan, schema) = (serde_json::from_str(&text).unwrap(), schema());
    breaks(&schema, &schema, &plan, "plan").unwrap();
    plan
}

#[test]
fn the_schema_refuses_what_is_none() {
    let text = "graph (x: %1) -> (y: %2) {
  state s: %0 -> %2 initial [1, 2]
  %0 = input : f32[2]
  %1 = input : f32[2]
  %2 = map [2] { add(a0, a1) } (%0, %1) : f32[2]
}";
    let graph = wgfc_ir::text::parse(text).unwrap();
    let program = compile_graph(graph, Stats::default(), &Default::default(), &mut |_, _| {}).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("out");
    wgfc::save(&program, &folder, &Default::default()).unwrap();
    let good = follows_the_schema(&folder);
    let schema = schema();
    for edit in [
        &(|v: &mut Value| v["version"] = 0.into()) as &dyn Fn(&mut Value),
        &|v| v["version"] = 2.into(),
        &|v| v["plans"] = Vec::<u8>::new().into(),
        &|v| _ = v["plans"][0].as_object_mut().unwrap().remove("buffers"),
        &|v| v["plans"][0]["kernels"][0]["name"] = "../x".into(),
        &|v| v["plans"][0]["kernels"][0]["name"] = "".into(),
        &|v| v["plans"][0]["kernels"][0]["workgroup_size"] = vec![1, 2].into(),
        &|v| v["plans"][0]["buffers"][0]["elements"] = "a;b".into(),
        &|v| v["plans"][0]["buffers"][0]["dtype"] = "f8".into(),
        &|v| v["plans"][0]["buffers"][0]["kind"] = serde_json::json!({ "kind": "arena", "arena": 0 }),
        &|v| v["plans"][0]["dispatches"][0]["kernel"] = (-1).into(),
        &|v| v["plans"][0]["states"][0]["growth"] = 1.into(),
        &|v| v["plans"][0]["symbols"] = vec!["a b"].into(),
    ] {
        let mut v = good.clone();
        edit(&mut v);
        assert!(breaks(&schema, &schema, &v, "plan").is_err(), "{v}");
    }
    for ty in wgfc_ir::DType::ALL {
        assert!(schema["$defs"]["dtype"]["enum"].as_array().unwrap().contains(&ty.name().into()));
    }
}
