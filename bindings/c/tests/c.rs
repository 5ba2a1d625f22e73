//! The header and the library agree, and programs in C and C++ run with them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use wgfc::{Options, SaveOptions};
use wgfc_c::error::{WgfcError, wgfc_error_code, wgfc_error_free, wgfc_error_message};
use wgfc_c::model::*;
use wgfc_c::tensor::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn header() -> String {
    std::fs::read_to_string(root().join("bindings/c/include/wgfc.h")).unwrap()
}

/// The type of C that stands for one of Rust.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(to) = rust.strip_prefix("*const ") {
        let to = c_type(to);
        return if to.ends_with('*') { format!("{to}const *") } else { format!("const {to} *") };
    }
    if let Some(to) = rust.strip_prefix("*mut ") {
        let to = c_type(to);
        return if to.ends_with('*') { format!("{to}*") } else { format!("{to} *") };
    }
    match rust {
        "c_char" | "std::ffi::c_char" => "char",
        "usize" => "size_t",
        "u32" => "uint32_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "WgfcError" => "wgfc_error",
        "WgfcModel" => "wgfc_model",
        "WgfcResults" => "wgfc_results",
        "WgfcTensor" => "wgfc_tensor",
        "WgfcPort" => "wgfc_port",
        other => panic!("no type of C is known for `{other}`"),
    }
    .to_owned()
}

/// The types of each exported function in C, without the names of its arguments.
fn exported() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for file in std::fs::read_dir(root().join("bindings/c/src")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let signature = &part[..part.find('{').unwrap()];
            let signature = signature.split("extern \"C\" fn ").nth(1).unwrap();
            let (name, rest) = signature.split_once('(').unwrap();
            let (arguments, result) = rest.rsplit_once(')').unwrap();
            let types: Vec<String> = (arguments.split(',').map(str::trim).filter(|a| !a.is_empty()))
                .map(|a| c_type(a.split_once(':').unwrap().1))
                .collect();
            let types = if types.is_empty() { "void".to_owned() } else { types.join(", ") };
            let result = result.trim().strip_prefix("->").map_or("void".to_owned(), c_type);
            all.insert(name.to_owned(), format!("{result}({types})"));
        }
    }
    all
}

/// The types of each function that the header declares, likewise.
fn declared() -> BTreeMap<String, String> {
    let header = header().replace("wgfc_code ", "int32_t ");
    let mut all = BTreeMap::new();
    for line in header.lines().filter_map(|l| l.strip_prefix("WGFC_API ")) {
        let (head, arguments) = line.strip_suffix(");").unwrap().split_once('(').unwrap();
        let at = head.rfind([' ', '*']).unwrap() + 1;
        let (result, name) = (head[..at].trim(), &head[at..]);
        let unnamed = |a: &str| {
            let a = a.trim();
            if a == "void" { a } else { a[..a.rfind([' ', '*']).unwrap() + 1].trim_end() }.to_owned()
        };
        let types: Vec<String> = arguments.split(',').map(unnamed).collect();
        all.insert(name.to_owned(), format!("{result}({})", types.join(", ")));
    }
    all
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let (exported, declared) = (exported(), declared());
    assert!(exported.len() > 15, "{exported:?}");
    assert_eq!(exported, declared);
    for (i, d) in DTYPES.iter().enumerate() {
        let line = format!("WGFC_{} = {i}", d.name().to_uppercase());
        assert!(header().lines().any(|l| l.trim().trim_end_matches(',') == line), "{line}");
    }
    assert!(header().contains(&format!("#define WGFC_ABI {}\n", wgfc_c::ABI)));
}

/// Runs a command and gives what it prints; `None` where there is no such program, which fails in CI.
fn run(command: &mut Command) -> Option<String> {
    let out = match command.output() {
        Ok(out) => out,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let ci = std::env::var("CI").is_ok_and(|v| !v.is_empty());
            assert!(!ci, "{command:?}: {e}");
            eprintln!("SKIPPED: there is no {:?}", command.get_program());
            return None;
        }
        Err(e) => panic!("{command:?}: {e}"),
    };
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, text(&out.stderr));
    Some(text(&out.stdout))
}

fn compiler(variable: &str, usual: &str) -> Command {
    let mut c = Command::new(std::env::var(variable).unwrap_or_else(|_| usual.to_owned()));
    c.args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(root().join("bindings/c/include"));
    c
}

/// The offsets of fields: `(structure in C, field, offset)`.
macro_rules! offsets {
    ($($name:literal = $structure:ident { $($field:ident),* }),*) => {
        [$($(($name, stringify!($field), offset_of!($structure, $field))),*),*]
    };
}

#[test]
fn structures_have_the_layout_of_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let offsets = offsets! {
        "wgfc_tensor" = WgfcTensor { name, dtype, rank, shape, data, bytes },
        "wgfc_port" = WgfcPort { name, dtype, rank, shape, extents, optional }
    };
    let sizes = [("wgfc_tensor", size_of::<WgfcTensor>()), ("wgfc_port", size_of::<WgfcPort>())];
    let mut text = "#include <wgfc.h>\n".to_owned();
    for (of, field, at) in offsets {
        text += &format!("_Static_assert(offsetof({of}, {field}) == {at}, \"{of}.{field}\");\n");
    }
    for (of, size) in sizes {
        text += &format!("_Static_assert(sizeof({of}) == {size}, \"{of}\");\n");
    }
    std::fs::write(&source, text).unwrap();
    run(compiler("CC", "cc").arg("-fsyntax-only").arg(source));
}

/// The folder in which cargo has put the shared and the static library.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(Path::to_owned).find(|f| f.join("libwgfc_c.a").exists());
    found.unwrap_or_else(|| panic!("no libwgfc_c.a beside {own:?}"))
}

/// Compiles the classifier of `fixtures/small/mlp` into a folder, and into a file beside it.
fn compiled(folder: &Path) -> (PathBuf, PathBuf) {
    let program = wgfc::compile_file(&root().join("fixtures/small/mlp/model.onnx"), &Options::default());
    let (program, dir, file) = (program.unwrap(), folder.join("mlp"), folder.join("mlp.wgfc"));
    wgfc::save(&program, &dir, &SaveOptions::default()).unwrap();
    wgfc::save(&program, &file, &SaveOptions::default()).unwrap();
    (dir, file)
}

fn numbers(line: &str) -> Vec<f32> {
    line.split_whitespace().skip(1).map(|v| v.parse().unwrap()).collect()
}

/// The probabilities that the library in Rust computes.
fn by_rust(folder: &Path, x: Vec<f32>) -> Vec<f32> {
    let gpu = &wgfc_runtime::testing::gpus()[0];
    let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc::load(folder).unwrap()).unwrap();
    let x = wgfc::Tensor::from_f32(vec![x.len() / 13, 13], &x);
    session.run_blocking(&[("x", x)]).unwrap()[0].1.to_f32s().unwrap()
}

fn close(a: &[f32], b: &[f32]) {
    // Six digits are printed.
    assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-6), "{a:?} {b:?}");
}

/// Arguments by which the compiler links with the linker that comes with Rust, where it does: the static library of a test build has
/// hundreds of megabytes.
fn quick_linker() -> Vec<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output();
    let Ok(sysroot) = sysroot.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()) else {
        return vec![];
    };
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = Path::new(&sysroot).join("lib/rustlib").join(target).join("bin/gcc-ld");
    match folder.join("ld.lld").exists() {
        true => vec![format!("-B{}", folder.display()), "-fuse-ld=lld".to_owned()],
        false => vec![],
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "links as Linux does")]
fn programs_in_c_and_cpp_run_models() {
    let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let (folder, file) = compiled(temporary.path());
    let exe = |name: &str| temporary.path().join(name);
    let program = |name: &str| {
        let mut command = Command::new(exe(name));
        // Cargo's search path comes before that of the executable, and may have a library of an earlier build.
        command.env("WGFC_ADAPTER", &gpu.summary().name).env_remove("LD_LIBRARY_PATH");
        command
    };
    let (libraries, sources) = (libraries(), root().join("examples/c"));

    let mut cc = compiler("CC", "cc");
    cc.arg("-std=c11").arg(sources.join("run.c")).arg("-L").arg(&libraries);
    cc.arg("-lwgfc_c").arg(format!("-Wl,-rpath,{}", libraries.display())).arg("-o").arg(exe("c"));
    if run(&mut cc).is_some() {
        let out = run(program("c").arg(&folder).arg("3")).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[..2], ["output probabilities: type 0, [batch, 5]", "input x: type 0, [batch, 13]"]);
        let ramp = (0..39).map(|k| 0.125 * (k % 17) as f32 - 1.0).collect();
        close(&numbers(lines[2]), &by_rust(&folder, ramp));
        assert_eq!(run(program("c").arg(&file).arg("3")).unwrap(), out);
        // A program that ends with an error of the library's.
        let failed = program("c").arg("nowhere").output().unwrap();
        let message = String::from_utf8_lossy(&failed.stderr);
        assert!(failed.status.code() == Some(1) && message.contains("nowhere"), "{message}");
    }

    let mut cxx = compiler("CXX", "c++");
    cxx.args(quick_linker())
        .arg("-std=c++17")
        .arg(sources.join("run.cpp"))
        .arg(libraries.join("libwgfc_c.a"));
    cxx.args(["-lpthread", "-lm", "-ldl", "-lrt", "-lutil", "-o"]).arg(exe("cpp"));
    if run(&mut cxx).is_some() {
        let out = run(program("cpp").arg(&file)).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        close(&numbers(lines[0]), &by_rust(&folder, vec![0.5; 26]));
        assert_eq!(lines[1..], ["code 1"]);
    }
}

/// The code and the message of an error, which is freed.
fn told(error: *mut WgfcError) -> (i32, String) {
    // SAFETY: it is an error of the library's, or null.
    unsafe {
        let message = CStr::from_ptr(wgfc_error_message(error)).to_str().unwrap().to_owned();
        let code = wgfc_error_code(error);
        wgfc_error_free(error);
        (code, message)
    }
}

fn open(path: &Path) -> Result<*mut WgfcModel, (i32, String)> {
    let adapter = wgfc_runtime::testing::gpus().first().map(|g| g.summary().name.clone()).unwrap_or_default();
    let (path, adapter) = (CString::new(path.to_str().unwrap()).unwrap(), CString::new(adapter).unwrap());
    let mut model = ptr::null_mut();
    // SAFETY: all of it is there.
    let error = unsafe { wgfc_open(path.as_ptr(), adapter.as_ptr(), &mut model) };
    assert_eq!(error.is_null(), !model.is_null());
    if error.is_null() { Ok(model) } else { Err(told(error)) }
}

/// Runs a model with a tensor, and gives its first output.
///
/// # Safety
/// The model and the tensor are as `wgfc.h` says.
unsafe fn run_one(model: *mut WgfcModel, x: &[WgfcTensor]) -> Result<Vec<f32>, (i32, String)> {
    let mut results = ptr::null_mut();
    // SAFETY: the caller vouches for it.
    unsafe {
        let error = wgfc_run(model, x.as_ptr(), x.len(), &mut results);
        assert_eq!(error.is_null(), !results.is_null());
        if !error.is_null() {
            return Err(told(error));
        }
        assert_eq!(wgfc_result_count(results), 1);
        assert!(wgfc_result(results, 1).is_null() && wgfc_result_named(results, c"y".as_ptr()).is_null());
        let t = wgfc_result_named(results, c"probabilities".as_ptr());
        assert_eq!(t, wgfc_result(results, 0));
        let data = std::slice::from_raw_parts((*t).data.cast::<f32>(), (*t).bytes / 4).to_vec();
        wgfc_results_free(results);
        Ok(data)
    }
}

#[test]
fn errors_are_values() {
    // SAFETY: null is allowed everywhere.
    unsafe {
        let (code, message) = told(wgfc_open(ptr::null(), ptr::null(), &mut ptr::null_mut()));
        assert!(code == 1 && message.contains("the path is NULL") && message.contains("wgfc.h"), "{message}");
        assert_eq!(told(wgfc_open(c"x".as_ptr(), ptr::null(), ptr::null_mut())).0, 1);
        let mut model = ptr::null_mut();
        assert_eq!(told(wgfc_open(c"\xff".as_ptr(), ptr::null(), &mut model)).0, 1);
        assert_eq!(told(wgfc_run(ptr::null_mut(), ptr::null(), 0, &mut ptr::null_mut())).0, 1);
        assert_eq!(told(wgfc_reset(ptr::null_mut())).0, 1);
        assert_eq!(told(wgfc_set_size(ptr::null_mut(), ptr::null(), 0)).0, 1);
        assert_eq!((wgfc_input_count(ptr::null()), wgfc_output_count(ptr::null())), (0, 0));
        assert!(wgfc_input(ptr::null(), 0).is_null() && wgfc_output(ptr::null(), 0).is_null());
        assert!(wgfc_result(ptr::null(), 0).is_null() && wgfc_result_count(ptr::null()) == 0);
        wgfc_model_free(ptr::null_mut());
        wgfc_results_free(ptr::null_mut());
    }
    let temporary = tempfile::tempdir().unwrap();
    let nothing = open(&temporary.path().join("nothing")).unwrap_err();
    assert!(nothing.0 == 1 && nothing.1.contains("is not a compiled program"), "{}", nothing.1);
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let (folder, _) = compiled(temporary.path());
    // SAFETY: an adapter that there is not.
    let none = unsafe {
        let path = CString::new(folder.to_str().unwrap()).unwrap();
        told(wgfc_open(path.as_ptr(), c"no such adapter".as_ptr(), &mut ptr::null_mut()))
    };
    assert!(none.0 == 3 && none.1.contains("no such adapter"), "{}", none.1);
    let model = open(&folder).unwrap();
    let (data, shape) = ([0.5f32; 26], [2i64, 13]);
    let good = WgfcTensor {
        name: c"x".as_ptr(),
        dtype: 0,
        rank: 2,
        shape: shape.as_ptr(),
        data: data.as_ptr().cast(),
        bytes: 104,
    };
    let twelve = [2i64, 12];
    let negative = [-2i64, 13];
    let huge = [i64::MAX, i64::MAX];
    let cases: &[(&[WgfcTensor], &str)] = &[
        (&[], "\"x\""),
        (&[WgfcTensor { name: c"z".as_ptr(), ..good }], "\"z\""),
        (&[WgfcTensor { name: ptr::null::<c_char>(), ..good }], "the name of an input is NULL"),
        (&[WgfcTensor { dtype: 99, ..good }], "no type of the number 99"),
        (&[WgfcTensor { dtype: -1, ..good }], "no type of the number -1"),
        (&[WgfcTensor { bytes: 100, ..good }], "f32[2, 13] has 104 bytes, and `bytes` is 100"),
        (&[WgfcTensor { data: ptr::null(), ..good }], "`data` is NULL"),
        (&[WgfcTensor { shape: ptr::null(), ..good }], "`shape` is NULL"),
        (&[WgfcTensor { shape: negative.as_ptr(), ..good }], "an extent is negative"),
        (&[WgfcTensor { shape: huge.as_ptr(), ..good }], "too many elements"),
        (&[WgfcTensor { shape: twelve.as_ptr(), bytes: 96, ..good }], "must have 13 elements, not 12"),
        (&[WgfcTensor { dtype: 5, ..good }], "i32"),
    ];
    // SAFETY: what is not null points to what there is.
    unsafe {
        for (inputs, want) in cases {
            let (code, message) = run_one(model, inputs).unwrap_err();
            assert!(code == 1 && message.contains(want), "{want}: {code} {message}");
        }
        let (code, message) = told(wgfc_set_size(model, c"nope".as_ptr(), 1));
        assert!(code == 1 && message.contains("no symbol \"nope\""), "{message}");
        assert!(wgfc_reset(model).is_null());
        // It still runs.
        close(&run_one(model, &[good]).unwrap(), &by_rust(&folder, data.to_vec()));
        wgfc_model_free(model);
    }
}

#[test]
fn models_run_on_many_threads() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let (folder, file) = compiled(temporary.path());
    struct Shared([*mut WgfcModel; 2]);
    // SAFETY: the header says so.
    unsafe impl Sync for Shared {}
    let shared = Shared([open(&folder).unwrap(), open(&file).unwrap()]);
    let shared = &shared;
    let want: Vec<Vec<f32>> = (0..4).map(|n| by_rust(&folder, vec![n as f32; 13 * (n + 1)])).collect();
    std::thread::scope(|s| {
        for (n, want) in want.iter().enumerate() {
            s.spawn(move || {
                let (data, shape) = (vec![n as f32; 13 * (n + 1)], [n as i64 + 1, 13]);
                let x = WgfcTensor {
                    name: c"x".as_ptr(),
                    dtype: 0,
                    rank: 2,
                    shape: shape.as_ptr(),
                    data: data.as_ptr().cast(),
                    bytes: 4 * data.len(),
                };
                for _ in 0..5 {
                    // SAFETY: the models are freed when all threads have ended.
                    close(&unsafe { run_one(shared.0[n % 2], &[x]) }.unwrap(), want);
                }
            });
        }
    });
    // SAFETY: nobody uses them any more.
    shared.0.iter().for_each(|m| unsafe { wgfc_model_free(*m) });
}
