enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
var<workgroup> results: array<f32, 2048>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32, @builtin(subgroup_id) subgroup: u32) {
    let n = turns[0];
    let a = subgroup_matrix_left<f16, 16, 16>(f16(turns[1]));
    let b = subgroup_matrix_right<f16, 16, 16>(f16(turns[1]));
    var p = subgroup_matrix_result<f32, 16, 16>();
    var q = subgroup_matrix_result<f32, 16, 16>();
    var r = subgroup_matrix_result<f32, 16, 16>();
    var s = subgroup_matrix_result<f32, 16, 16>();
    for (var i = 0u; i < n; i++) {
        p = subgroupMatrixMultiplyAccumulate(a, b, p); q = subgroupMatrixMultiplyAccumulate(a, b, q);
        r = subgroupMatrixMultiplyAccumulate(a, b, r); s = subgroupMatrixMultiplyAccumulate(a, b, s);
        p = subgroupMatrixMultiplyAccumulate(a, b, p); q = subgroupMatrixMultiplyAccumulate(a, b, q);
        r = subgroupMatrixMultiplyAccumulate(a, b, r); s = subgroupMatrixMultiplyAccumulate(a, b, s);
    }
    var sum = 0.0;
    let own = subgroup % 8u * 256u;
    subgroupMatrixStore<row_major>(&results, own, p, 16u);
    workgroupBarrier();
    sum += results[local];
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&results, own, q, 16u);
    workgroupBarrier();
    sum += results[local];
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&results, own, r, 16u);
    workgroupBarrier();
    sum += results[local];
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&results, own, s, 16u);
    workgroupBarrier();
    sum += results[local];
    if (sum == 12345.0) { out[0] = sum; }
}
