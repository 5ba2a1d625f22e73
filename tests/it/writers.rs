//! Kernels as Metal, DirectX 12 and Vulkan get them: naga's writers must write each in MSL, HLSL and SPIR-V with the options that
//! wgpu gives them, and `spirv-val` must accept the SPIR-V.
//!
//! The kernels are those of the snapshots, of the compiler's file tests (`compiler/tests/filetests/emit`), and of the models in
//! `fixtures/`, compiled for browsers, for a device with `f16` and subgroups, and for one with matrix units. Known refusals are in
//! `tests/conformance/writers.tsv`.

use crate::backend::Failure;
use crate::data::Folder;
use crate::{programs, snapshots};
use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ResourceBinding, ShaderStage};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use wgfc::ModelFile;
use wgfc::generate::{Decoder, compile_decoder};
use wgfc_compiler::options::Precision;
use wgfc_compiler::{DeviceProfile, Options};
use wgfc_ir::Program;
use wgfc_ir::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};

/// The features that kernels can need, and naga's names for them.
const FEATURES: [(&str, Capabilities); 4] = [
    ("shader-f16", Capabilities::SHADER_FLOAT16),
    ("subgroups", Capabilities::SUBGROUP),
    (CHROMIUM_MATRICES, Capabilities::COOPERATIVE_MATRIX),
    (WGPU_MATRICES, Capabilities::COOPERATIVE_MATRIX),
];

/// Kernels by text, each with the features that it needs and its place in the first program that has it.
type Kernels = BTreeMap<String, (Capabilities, String)>;

/// Makes the programs of one source of kernels.
type Maker<'a> = Box<dyn Fn() -> Result<Vec<Program>, Failure> + Sync + 'a>;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn capabilities<'a>(names: impl Iterator<Item = &'a str>) -> Capabilities {
    // The packing functions of f16 in 32-bit words are part of WGSL without any feature.
    let mut all = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    names.for_each(|n| all |= FEATURES.iter().find(|f| f.0 == n).expect("a known feature").1);
    all
}

/// The entries of a folder, sorted; none if there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The texts in the file tests of emission. A line `// FAMILY workgroups […] of […], FEATURES` precedes each.
fn of_file_tests() -> Kernels {
    let mut kernels = Kernels::new();
    for file in entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("compiler/tests/filetests/emit")) {
        let whole = std::fs::read_to_string(&file).unwrap();
        let (_, texts) = whole.split_once("\n// wgsl\n").expect("a file of emission has WGSL");
        let mut found: Vec<(Capabilities, String)> = vec![];
        for line in texts.lines() {
            if line.starts_with("// ") && line.contains(" workgroups [") {
                let known = |w: &&str| FEATURES.iter().any(|f| f.0 == *w);
                found.push((capabilities(line.split(", ").filter(known)), String::new()));
            } else if let Some((_, text)) = found.last_mut() {
                *text += line;
                *text += "\n";
            }
        }
        for (features, text) in found {
            kernels.entry(text).or_insert_with(|| (features, format!("emit/{}", name(&file))));
        }
    }
    kernels
}

/// The options that models are compiled with: the limits of every browser, the features that Metal and DirectX 12 can have, and all.
fn settings() -> [(&'static str, Options); 3] {
    let speeds = |name| DeviceProfile::named(name).expect("a named device").speeds;
    let halves = DeviceProfile {
        f16: true,
        subgroup: Some(32),
        max_workgroup_bytes: 32768,
        max_invocations: 1024,
        speeds: speeds("integrated"),
        ..DeviceProfile::default()
    };
    let matrices = DeviceProfile {
        cooperative_matrix: true,
        max_workgroup_bytes: 49152,
        speeds: speeds("discrete"),
        ..halves.clone()
    };
    let plain = Options { graph_only: true, ..Options::default() };
    [
        ("browsers", plain.clone()),
        ("f16 and subgroups", Options { profile: halves, ..plain.clone() }),
        // In f16 so that models of f32 have products on matrix units, too.
        ("matrix units", Options { profile: matrices, precision: Precision::F16, ..plain }),
    ]
}

/// The files of models with a graph, and those of language models without one.
fn models() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let fixtures = fixtures();
    let small = ["small", "simulations"].map(|kind| Folder::all(&fixtures.join(kind)));
    let mut files: Vec<PathBuf> = small.iter().flatten().map(Folder::model_path).collect();
    let folders = ["", "digits", "encoder", "torch", "torch/blocks", "torch/kernels", "torch/static-cache"];
    let more = ["torch/vision-language/idefics3/onnx", "torch/vision-language/llava/onnx", "torch/whisper"];
    let folders = folders.iter().chain(&more).map(|f| fixtures.join(f));
    for folder in folders.chain([crate::folder("WGFC_FX", "target/fx").join("graphs")]) {
        let is_model = |f: &PathBuf| f.extension().is_some_and(|e| e == "onnx" || e == "pt2");
        files
            .extend(entries(&folder).into_iter().filter(is_model).filter(|f| programs::refused(f).is_none()));
    }
    let decoders = entries(&fixtures.join("decoders")).into_iter().filter(|d| d.is_dir());
    (files, decoders.map(|d| d.join("model.gguf")).collect())
}

fn words(e: impl std::fmt::Display) -> Failure {
    Failure::error(e.to_string())
}

/// All sources of kernels but the file tests.
fn makers<'a>(
    settings: &'a [(&'static str, Options)],
    models: &'a (Vec<PathBuf>, Vec<PathBuf>),
) -> Vec<(String, Maker<'a>)> {
    let mut out: Vec<(String, Maker<'a>)> = vec![];
    for (name, make) in snapshots::makers() {
        out.push((name, Box::new(move || Ok(vec![make()?]))));
    }
    for (device, options) in settings {
        // Programs in core ATen have nearly the kernels of the same ones in the other dialect.
        let core = |f: &&PathBuf| name(f).ends_with(".core.pt2");
        for file in models.0.iter().filter(|f| *device == "browsers" || !core(f)) {
            let make =
                move || Ok(vec![ModelFile::open(file).and_then(|f| f.compile(options)).map_err(words)?]);
            out.push((format!("{} for {device}", file.display()), Box::new(make)));
        }
        for file in &models.1 {
            let make = move || {
                let whole = Options { graph_only: false, ..options.clone() };
                let bundle = Decoder::open(file).and_then(|d| compile_decoder(&d, &whole)).map_err(words)?;
                Ok(bundle.plans.into_iter().map(|p| p.program).collect())
            };
            out.push((format!("{} for {device}", file.display()), Box::new(make)));
        }
    }
    out
}

/// The results of a function for all items, computed in two threads.
fn each<T: Sync, R: Send>(items: &[T], act: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    let result = act(i, item);
                    results.lock().unwrap().push((i, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, r)| r).collect()
}

/// A kernel in naga's form.
struct Parsed {
    module: Module,
    info: ModuleInfo,
    capabilities: Capabilities,
}

fn parsed(text: &str, capabilities: Capabilities) -> Result<Parsed, String> {
    let text = wgfc_ir::wgsl::for_naga(text);
    let module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    let info = validator.validate(&module).map_err(|e| e.emit_to_string(&text))?;
    Ok(Parsed { module, info, capabilities })
}

impl Parsed {
    /// The bindings, in the order of their numbers.
    fn bindings(&self) -> BTreeSet<ResourceBinding> {
        self.module.global_variables.iter().filter_map(|(_, v)| v.binding).collect()
    }

    fn has(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    /// The kernel in the Metal Shading Language: 2.4, which macOS 12 has.
    fn metal(&self) -> Result<String, String> {
        let bindings = self.bindings();
        let target = |(slot, binding): (usize, &ResourceBinding)| {
            let target =
                msl::BindTarget { buffer: Some(slot as u8), mutable: true, ..msl::BindTarget::default() };
            (*binding, target)
        };
        let resources = msl::EntryPointResources {
            resources: bindings.iter().enumerate().map(target).collect(),
            immediates_buffer: None,
            sizes_buffer: Some(bindings.len() as u8),
        };
        let options = msl::Options {
            lang_version: (2, 4),
            fake_missing_bindings: false,
            per_entry_point_map: [("main".to_owned(), resources)].into(),
            bounds_check_policies: all_checked(),
            ..msl::Options::default()
        };
        let entry = msl::PipelineOptions {
            entry_point: Some((ShaderStage::Compute, "main".to_owned())),
            ..msl::PipelineOptions::default()
        };
        let (text, written) =
            msl::write_string(&self.module, &self.info, &options, &entry).map_err(|e| e.to_string())?;
        written.entry_point_names.into_iter().try_for_each(|n| n.map(drop)).map_err(|e| e.to_string())?;
        Ok(text)
    }

    /// The kernel in HLSL, of the least shader model that has its features.
    fn direct(&self) -> Result<String, String> {
        let bindings = self.bindings();
        let target = |(register, binding): (usize, &ResourceBinding)| {
            let target = hlsl::BindTarget {
                register: register as u32,
                restrict_indexing: true,
                ..hlsl::BindTarget::default()
            };
            (*binding, target)
        };
        let shader_model = match () {
            () if self.has(Capabilities::SHADER_FLOAT16) => hlsl::ShaderModel::V6_2,
            () if self.has(Capabilities::SUBGROUP) => hlsl::ShaderModel::V6_0,
            () => hlsl::ShaderModel::V5_1,
        };
        let options = hlsl::Options {
            shader_model,
            binding_map: bindings.iter().enumerate().map(target).collect(),
            fake_missing_bindings: false,
            // The numbers of workgroups are there.
            special_constants_binding: Some(hlsl::BindTarget { space: 1, ..hlsl::BindTarget::default() }),
            ..hlsl::Options::default()
        };
        let entry = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, "main".to_owned())) };
        let mut text = String::new();
        let written = hlsl::Writer::new(&mut text, &options, &entry)
            .write(&self.module, &self.info, None)
            .map_err(|e| e.to_string())?;
        written.entry_point_names.into_iter().try_for_each(|n| n.map(drop)).map_err(|e| e.to_string())?;
        Ok(text)
    }

    /// The version of Vulkan that the SPIR-V is for, in the words of `spirv-val`.
    fn environment(&self) -> &'static str {
        if self.has(Capabilities::COOPERATIVE_MATRIX) { "vulkan1.3" } else { "vulkan1.1" }
    }

    /// The kernel in SPIR-V, with no other capabilities than those of its features.
    fn vulkan(&self) -> Result<Vec<u8>, String> {
        use spv::Capability as C;
        let mut allowed = vec![C::Shader, C::Matrix];
        if self.has(Capabilities::SHADER_FLOAT16) {
            allowed.push(C::Float16);
        }
        if self.has(Capabilities::SUBGROUP) {
            allowed.extend([
                C::GroupNonUniform,
                C::GroupNonUniformVote,
                C::GroupNonUniformArithmetic,
                C::GroupNonUniformBallot,
                C::GroupNonUniformShuffle,
                C::GroupNonUniformShuffleRelative,
                C::GroupNonUniformQuad,
            ]);
        }
        let matrices = self.has(Capabilities::COOPERATIVE_MATRIX);
        if matrices {
            allowed.extend([C::CooperativeMatrixKHR, C::VulkanMemoryModel]);
        }
        let binding = |b: ResourceBinding| {
            (b, spv::BindingInfo { descriptor_set: 0, binding: b.binding, binding_array_size: None })
        };
        let options = spv::Options {
            lang_version: if matrices { (1, 6) } else { (1, 3) },
            flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
            binding_map: self.bindings().into_iter().map(binding).collect(),
            capabilities: Some(allowed.into_iter().collect()),
            bounds_check_policies: all_checked(),
            ..spv::Options::default()
        };
        let entry =
            spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".to_owned() };
        let words =
            spv::write_vec(&self.module, &self.info, &options, Some(&entry)).map_err(|e| e.to_string())?;
        Ok(words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }
}

fn all_checked() -> BoundsCheckPolicies {
    let checked = BoundsCheckPolicy::Restrict;
    BoundsCheckPolicies { index: checked, buffer: checked, image_load: checked, binding_array: checked }
}

/// A writer's result; a panic is an error.
fn attempt<T>(write: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|e| {
        let text =
            e.downcast_ref::<String>().cloned().or_else(|| Some((*e.downcast_ref::<&str>()?).to_owned()));
        Err(format!("panics: {}", text.unwrap_or_default()))
    })
}

/// The refusals of one kernel: who refuses it, and the message. Texts are left in the folder as `N.metal`, `N.hlsl` and `N.spv`.
fn refusals(file: &Path, text: &str, features: Capabilities, validate: bool) -> Vec<(&'static str, String)> {
    let kernel = match parsed(text, features) {
        Ok(kernel) => kernel,
        Err(e) => return vec![("naga", e)],
    };
    let mut out = vec![];
    let mut keep = |writer, extension, written: Result<Vec<u8>, String>| match written {
        Ok(bytes) => std::fs::write(file.with_extension(extension), bytes).unwrap(),
        Err(e) => out.push((writer, e)),
    };
    keep("msl", "metal", attempt(|| kernel.metal().map(String::into_bytes)));
    keep("hlsl", "hlsl", attempt(|| kernel.direct().map(String::into_bytes)));
    let spirv = attempt(|| kernel.vulkan());
    let written = spirv.is_ok();
    keep("spirv", "spv", spirv);
    if written && validate {
        let mut command = Command::new("spirv-val");
        let said =
            command.arg("--target-env").arg(kernel.environment()).arg(file.with_extension("spv")).output();
        let said = said.expect("it ran before");
        if !said.status.success() {
            out.push(("spirv-val", String::from_utf8_lossy(&said.stderr).into_owned()));
        }
    }
    out
}

/// A line of `tests/conformance/writers.tsv`.
struct Known<'a> {
    writer: &'a str,
    message: &'a str,
    /// The version of `spirv-val` in which the message was seen.
    version: &'a str,
}

/// Where `WGFC_WRITTEN` names a folder, what is written stays there, for other tools: `N.metal`, `N.hlsl`, `N.spv`, and `N.wgsl`.
#[test]
fn kernels_are_written_for_metal_direct3d_and_vulkan() {
    let test = "kernels_are_written_for_metal_direct3d_and_vulkan";
    let (settings, models) = (settings(), models());
    let makers = makers(&settings, &models);
    let mut failures = vec![];
    let mut kernels = of_file_tests();
    for ((source, _), made) in makers.iter().zip(each(&makers, |_, (_, make)| make())) {
        match made {
            Ok(programs) => {
                for (i, k) in programs.iter().flat_map(|p| &p.kernels).enumerate() {
                    let features = || capabilities(k.features.iter().map(String::as_str));
                    let place = || (features(), format!("{source}, kernel {i} ({})", k.family));
                    kernels.entry(k.wgsl.clone()).or_insert_with(place);
                }
            }
            Err(e) => failures.push(format!("{source}: {}: {}", e.status(), e.message())),
        }
    }

    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("WGFC_WRITTEN").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(folder).unwrap();
    let said = Command::new("spirv-val").arg("--version").output().ok();
    let said = said.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let version = said.as_deref().and_then(|s| s.split_whitespace().find(|w| w.starts_with("v2")));
    let all: Vec<_> = kernels.iter().collect();
    let refused = each(&all, |i, (text, (features, _))| {
        let file = folder.join(i.to_string());
        if kept.is_some() {
            std::fs::write(file.with_extension("wgsl"), text).unwrap();
        }
        refusals(&file, text, *features, said.is_some())
    });

    let list =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/writers.tsv"));
    let list = list.unwrap();
    let lines = list.lines().filter(|l| !l.starts_with('#')).map(|l| l.split('\t').collect::<Vec<_>>());
    let known: Vec<Known<'_>> = lines
        .map(|l| match l[..] {
            [writer, message, version, _why] => Known { writer, message, version },
            _ => panic!("tests/conformance/writers.tsv: four columns, not {l:?}"),
        })
        .collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (i, ((_, (_, place)), refused)) in all.iter().zip(&refused).enumerate() {
        for (writer, message) in refused {
            *counts.entry(writer).or_default() += 1;
            match known.iter().position(|k| k.writer == *writer && message.contains(k.message)) {
                Some(line) => _ = seen.insert(line),
                None => failures.push(format!("{writer} refuses {place}, number {i}: {message}")),
            }
        }
    }
    for (i, k) in known.iter().enumerate() {
        if !seen.contains(&i) && (k.version == "-" || Some(k.version) == version) {
            failures.push(format!(
                "no kernel is refused any more by {} with `{}`: remove the line from tests/conformance/writers.tsv",
                k.writer, k.message
            ));
        }
    }
    crate::say(format!(
        "{} kernels, refused: {counts:?}, spirv-val {}",
        all.len(),
        version.unwrap_or("is not there")
    ));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    if said.is_none() {
        crate::skip(
            test,
            "the SPIR-V is not validated, as there is no spirv-val: install spirv-tools, or run scripts/test.sh, which does",
        );
    }
    if !models.0.iter().any(|f| f.ends_with("segformer.pt2")) {
        crate::skip(test, "target/fx is empty: run scripts/aten_cases.py");
    }
}
