use super::*;

/// A kernel of workgroups of 64 invocations whose bindings are used so.
fn kernel(wgsl: &str, bindings: &[Access]) -> EmittedKernel {
    EmittedKernel {
        family: "map",
        wgsl: wgsl.into(),
        workgroup_size: [64, 1, 1],
        bindings: bindings.iter().copied().enumerate().collect(),
        uses_dims: wgsl.contains("uniform"),
        workgroup_bytes: 0,
        features: vec![],
        subgroup_size: None,
        workgroups: [1, 1, 1].map(wgfc_ir::Dim::constant),
    }
}

const WRITES_SINGLE: &str = "
@group(0) @binding(0) var<storage, read> input_data: array<vec4<f32>>; // the input
@group(0) @binding(1) var<storage, read_write> output_data: array<f32>;

const SCALE = 1e-5f;

fn scaled(x: f32) -> f32 {
    return x * SCALE;
}

var<workgroup> shared: array<f32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = i32(group.y * groups.x + group.x);
    shared[local] = input_data[i].y;
    workgroupBarrier();
    output_data[64 * i + i32(local)] = scaled(shared[63u - local]);
}
";

const READS_FOURS: &str = "
@group(0) @binding(0) var<storage, read> input_data: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> output_data: array<vec4<f32>>;

fn scaled(x: vec4<f32>) -> vec4<f32> {
    return x * 2.0;
}

var<workgroup> many: array<f32, 128>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32) {
    many[local] = input_data[local / 4u].x;
    workgroupBarrier();
    if (local < 16u) {
        output_data[local] = scaled(input_data[local]) + vec4<f32>(many[local]);
    }
}
";

fn linked(parts: &[Part]) -> Linked {
    let linked = link(parts).unwrap();
    wgfc_ir::check::check(&linked.kernel.named(String::new())).unwrap_or_else(|e| panic!("{e}"));
    linked
}

#[test]
fn kernels_keep_their_names_apart_and_share_memory() {
    use Access::{Read, ReadWrite};
    let (a, b) = (kernel(WRITES_SINGLE, &[Read, ReadWrite]), kernel(READS_FOURS, &[Read, ReadWrite]));
    let places = |all: &[Place]| all.to_vec();
    let parts = [
        Part {
            kernel: &a,
            places: places(&[Place::Buffer(0), Place::Within(1, 768)]),
            workgroups: [3, 1, 1],
        },
        Part {
            kernel: &b,
            places: places(&[Place::Within(1, 768), Place::Buffer(2)]),
            workgroups: [1, 1, 1],
        },
    ];
    let Linked { kernel, bindings } = linked(&parts);
    assert_eq!(bindings, [Bound::Buffer(0), Bound::Buffer(2), Bound::Within(DType::F32, 192)]);
    let access: Vec<Access> = kernel.bindings.iter().map(|b| b.1).collect();
    assert_eq!(access, [Read, ReadWrite, ReadWrite]);
    for part in [
        "var<workgroup> shared_f32_0: array<f32, 128>;",
        "fn scaled(x: f32)",
        "fn scaled_1(x: vec4<f32>)",
        "buffer0[i].y",
        "within_f32[64 * i + i32(local)] = scaled(shared_f32_0[63u - local]);",
        "shared_f32_0[local] = within_f32[4 * i32(local / 4u)];",
        "for (var g = 0u; g < 3u; g++) {",
        "kernel0(vec3<u32>(g, 0u, 0u), vec3<u32>(3u, 1u, 1u), local);",
        "storageBarrier();",
        "kernel1(local);",
    ] {
        assert!(kernel.wgsl.contains(part), "no `{part}` in\n{}", kernel.wgsl);
    }
    // 128 elements of four bytes serve both.
    assert_eq!(kernel.workgroup_bytes, 512);
}

#[test]
fn equal_declarations_are_written_once() {
    use Access::{Read, ReadWrite};
    let a = kernel(WRITES_SINGLE, &[Read, ReadWrite]);
    let part = |from, to| Part { kernel: &a, places: vec![from, to], workgroups: [1, 1, 1] };
    let within = |n| Place::Within(n, 256);
    let text = linked(&[part(Place::Constant(0), within(1)), part(Place::Constant(2), Place::Buffer(3))])
        .kernel
        .wgsl;
    assert_eq!(text.matches("fn scaled").count(), 1, "{text}");
    assert_eq!(text.matches("const SCALE").count(), 1, "{text}");
    assert!(text.contains("constant0_f32x4[i].y") && text.contains("constant2_f32x4[i].y"), "{text}");
}

#[test]
fn what_uses_a_name_of_its_module_is_of_its_module() {
    let module = |factor: &str| {
        let text = format!(
            "
@group(0) @binding(0) var<storage, read_write> data: array<f32>;
fn outer(x: f32) -> f32 {{
    return inner(x) + 1.0;
}}
fn inner(x: f32) -> f32 {{
    return {factor} * x;
}}
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32) {{
    data[local] = outer(data[local]);
}}
"
        );
        kernel(&text, &[Access::ReadWrite])
    };
    let (twice, thrice) = (module("2.0"), module("3.0"));
    let part = |kernel| Part { kernel, places: vec![Place::Buffer(0)], workgroups: [1, 1, 1] };
    let text = linked(&[part(&twice), part(&thrice), part(&twice)]).kernel.wgsl;
    assert_eq!(text.matches("inner(x) + 1.0").count(), 1, "{text}");
    assert_eq!(text.matches("inner_1(x) + 1.0").count(), 1, "{text}");
    assert!(text.contains("buffer0[local] = outer_1(buffer0[local]);"), "{text}");
}

#[test]
fn a_buffer_with_atomic_accesses_has_no_others() {
    use Access::{Read, ReadWrite};
    let add = "
@group(0) @binding(0) var<storage, read_write> counts_data: array<atomic<u32>>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32) {
    atomicAdd(&counts_data[local % 4u], 1u);
}
";
    let double = "
@group(0) @binding(0) var<storage, read_write> counts_data: array<vec4<u32>>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32) {
    if (local == 0u) {
        counts_data[local] = counts_data[local] * 2u;
        counts_data[0].y = 7u;
    }
}
";
    let (add, double) = (kernel(add, &[ReadWrite]), kernel(double, &[Read]));
    let part = |kernel| Part { kernel, places: vec![Place::Buffer(0)], workgroups: [1, 1, 1] };
    let text = linked(&[part(&add), part(&double)]).kernel.wgsl;
    for line in [
        "array<atomic<u32>>;",
        "atomicAdd(&buffer0[local % 4u], 1u);",
        "atomicLoad(&buffer0[4 * i32(local) + 3])",
        "atomicStore(&buffer0[stored_at + 2], stored_value.z);",
        "atomicStore(&buffer0[4 * i32(0) + 1], 7u);",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
}

#[test]
fn what_cannot_be_linked_is_refused() {
    let a = kernel(WRITES_SINGLE, &[Access::Read, Access::ReadWrite]);
    let places = vec![Place::Buffer(0), Place::Buffer(1)];
    let refused = |kernels: &[&EmittedKernel]| {
        let part = |kernel| Part { kernel, places: places.clone(), workgroups: [1, 1, 1] };
        let parts: Vec<Part> = kernels.iter().copied().map(part).collect();
        link(&parts).err().unwrap()
    };
    let wide = EmittedKernel { workgroup_size: [128, 1, 1], ..a.clone() };
    assert_eq!(refused(&[&a, &wide]), "workgroups of several sizes");
    let with = |from: &str, to: &str| EmittedKernel { wgsl: a.wgsl.replace(from, to), ..a.clone() };
    let words = with("array<f32>;", "array<u32>;");
    assert!(refused(&[&a, &words]).starts_with("a tensor is an array of f32 and of u32"));
    assert!(refused(&[&with("array<f32>;", "array<mat2x2<f32>>;")]).ends_with("is not an array of numbers"));
    let builtin = with("workgroup_id) group", "global_invocation_id) at");
    assert_eq!(refused(&[&builtin]), "an entry point with `global_invocation_id` as `at`");
    let pointer = with("output_data[64", "let p = &output_data; (*p)[64");
    assert!(refused(&[&pointer]).contains("output_data"));
    let private = with("const SCALE = 1e-5f;", "var<private> SCALE: f32 = 1e-5f;");
    assert!(link(&[Part { kernel: &private, places: places.clone(), workgroups: [1, 1, 1] }]).is_ok());
    let text = private.wgsl.replace("workgroupBarrier();", "SCALE = 2.0; workgroupBarrier();");
    assert_eq!(
        refused(&[&EmittedKernel { wgsl: text, ..a.clone() }]),
        "the private variable `SCALE` changes"
    );
    assert!(link(&[]).is_err());
}

#[test]
fn numbers_are_words_of_their_own() {
    let text = "let x = 1e-5f + 0x1p-3 - 2.5e+1 + a1.x; // e-5";
    let words: Vec<&str> = tokens(text).into_iter().filter(|t| is_code(t)).collect();
    assert_eq!(words, ["let", "x", "=", "1e-5f", "+", "0x1p-3", "-", "2.5e+1", "+", "a1", ".", "x", ";"]);
}
